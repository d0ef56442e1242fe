"""Every route of the server, with what it takes and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel

from server.admission.probes import LIVENESS, READINESS
from server.api.anthropic.messages_request import CountTokensRequest, MessagesRequest
from server.api.conversations.conversation_requests import AddedItems, ConversationChange, NewConversation
from server.api.openai.chat_request import ChatCompletionRequest
from server.api.openai.completion_request import CompletionRequest
from server.api.openai.token_requests import DetokenizeRequest, EmbeddingsRequest, TokenizeRequest
from server.api.openapi import answers, messages
from server.api.responses.responses_request import ResponsesRequest
from server.protocol.admin_requests import AbortBody, ModelBody, SleepBody, UpdateWeightsBody


class Tag(StrEnum):
    """The groups in which routes are shown, in this order."""

    GENERATING = "Generating"
    RESPONSES = "Responses and conversations"
    TOKENS = "Tokens and embeddings"
    MODELS = "Models"
    HEALTH = "Health"
    ADMIN = "Administration"
    PAGES = "Pages"


class Key(StrEnum):
    """Whose key a route wants, where keys are set."""

    CLIENT = "client"
    ADMIN = "admin"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    tag: Tag
    summary: str
    body: type[BaseModel] | None = None
    needs_body: bool = True
    answer: type[BaseModel] | str = "application/json"  # or a media type, of JSON without a fixed form
    event: type[BaseModel] | None = None  # of its stream of server-sent events, where there is one
    error: type[BaseModel] = answers.Error
    key: Key = Key.CLIENT
    query: tuple[str, ...] = ()  # names of its parameters in the address
    is_socket: bool = False


def _admin(name: str, summary: str, body: type[BaseModel], *, needs_body: bool = False) -> Operation:
    path = f"/admin/{name}"
    return Operation("POST", path, Tag.ADMIN, summary, body, needs_body=needs_body, key=Key.ADMIN)


def _page(path: str, summary: str, kind: str = "text/html") -> Operation:
    return Operation("GET", path, Tag.PAGES, summary, answer=kind, key=Key.NOBODY)


_PAGE = ("limit", "order", "after")

OPERATIONS = (
    Operation(
        "POST", "/v1/chat/completions", Tag.GENERATING, "Answers a conversation", ChatCompletionRequest,
        answer=answers.ChatCompletion, event=answers.ChatChunk,
    ),
    Operation(
        "POST", "/v1/completions", Tag.GENERATING, "Continues a prompt", CompletionRequest,
        answer=answers.Completion, event=answers.Completion,
    ),
    Operation(
        "POST", "/v1/messages", Tag.GENERATING, "Anthropic's: writes the next message of a conversation",
        MessagesRequest, answer=messages.AnthropicMessage, event=messages.MessageEvent,
        error=messages.AnthropicError,
    ),
    Operation(
        "POST", "/v1/messages/count_tokens", Tag.TOKENS, "Anthropic's: the tokens of a conversation",
        CountTokensRequest, answer=messages.TokenCount, error=messages.AnthropicError,
    ),
    Operation(
        "GET", "/v1/stream", Tag.GENERATING, "A WebSocket for many generations at once", is_socket=True,
    ),
    Operation(
        "POST", "/v1/requests/{id}/cancel", Tag.GENERATING, "Ends a request early", answer=answers.Cancellation
    ),
    Operation("DELETE", "/v1/requests/{id}", Tag.GENERATING, "Ends a request early", answer=answers.Cancellation),
    Operation(
        "GET", "/v1/requests", Tag.ADMIN, "The last requests of all clients", key=Key.ADMIN, query=("limit", "before"),
    ),
    Operation(
        "GET", "/v1/requests/{id}", Tag.ADMIN, "One of them, with its tokens and events", key=Key.ADMIN,
        query=("number",),
    ),
    Operation(
        "POST", "/v1/responses", Tag.RESPONSES, "Makes a response", ResponsesRequest, event=answers.ResponseEvent
    ),
    Operation("GET", "/v1/responses", Tag.RESPONSES, "A WebSocket for many responses", is_socket=True),
    Operation(
        "GET", "/v1/responses/{id}", Tag.RESPONSES, "A stored response, or its events",
        query=("stream", "starting_after"), event=answers.ResponseEvent,
    ),
    Operation("DELETE", "/v1/responses/{id}", Tag.RESPONSES, "Forgets a response"),
    Operation("POST", "/v1/responses/{id}/cancel", Tag.RESPONSES, "Ends a response in the background early"),
    Operation(
        "GET", "/v1/responses/{id}/input_items", Tag.RESPONSES, "What a response was made from", query=_PAGE
    ),
    Operation(
        "POST", "/v1/conversations", Tag.RESPONSES, "Begins a conversation", NewConversation, needs_body=False
    ),
    Operation("GET", "/v1/conversations/{id}", Tag.RESPONSES, "A conversation"),
    Operation("POST", "/v1/conversations/{id}", Tag.RESPONSES, "Changes its metadata", ConversationChange),
    Operation("DELETE", "/v1/conversations/{id}", Tag.RESPONSES, "Forgets a conversation"),
    Operation("GET", "/v1/conversations/{id}/items", Tag.RESPONSES, "Its items", query=_PAGE),
    Operation("POST", "/v1/conversations/{id}/items", Tag.RESPONSES, "Adds items to it", AddedItems),
    Operation("GET", "/v1/conversations/{id}/items/{item}", Tag.RESPONSES, "One of its items"),
    Operation("DELETE", "/v1/conversations/{id}/items/{item}", Tag.RESPONSES, "Removes one of its items"),
    Operation(
        "GET", "/v1/streams/{id}", Tag.GENERATING, "The rest of a resumable stream",
        answer="text/event-stream", query=("after",),
    ),
    Operation(
        "DELETE", "/v1/streams/{id}", Tag.GENERATING, "Stops a resumable stream", answer=answers.DeletedStream
    ),
    Operation("POST", "/v1/embeddings", Tag.TOKENS, "Makes embeddings", EmbeddingsRequest, answer=answers.Embeddings),
    Operation("POST", "/tokenize", Tag.TOKENS, "The tokens of a text", TokenizeRequest, answer=answers.Tokens),
    Operation(
        "POST", "/detokenize", Tag.TOKENS, "The text of tokens", DetokenizeRequest, answer=answers.DetokenizedText
    ),
    Operation(
        "POST", "/v1/chat/completions/render", Tag.TOKENS, "The tokens of a conversation, as it would be answered",
        ChatCompletionRequest, answer=answers.RenderedPrompt,
    ),
    Operation(
        "POST", "/v1/completions/render", Tag.TOKENS, "The tokens of each prompt, as it would be continued",
        CompletionRequest,
    ),
    Operation("GET", "/v1/models", Tag.MODELS, "The served models", answer=answers.ModelList),
    Operation("GET", "/v1/models/{id}", Tag.MODELS, "One served model", answer=answers.ModelCard),
    *(
        Operation("GET", path, Tag.MODELS, "What routers ask of a server")
        for path in ("/server_info", "/get_server_info", "/model_info", "/get_model_info")
    ),
    Operation("GET", "/version", Tag.HEALTH, "Which Eagre this is", answer=answers.Version),
    Operation("GET", LIVENESS, Tag.HEALTH, "Whether the engine turns", key=Key.NOBODY),
    Operation(
        "GET", READINESS, Tag.HEALTH, "Whether requests are accepted", answer=answers.Readiness, key=Key.NOBODY
    ),
    Operation("GET", "/health", Tag.HEALTH, "Readiness with the figures of each model's engine"),
    Operation("GET", "/metrics", Tag.HEALTH, "The figures that Prometheus reads", answer="text/plain"),
    Operation(
        "GET", "/engine/events", Tag.HEALTH, "What the engine does, five times a second", answer="text/event-stream",
        query=("model",),
    ),
    _admin("pause", "Lets requests wait from now on", ModelBody),
    _admin("resume", "Ends a pause", ModelBody),
    _admin("sleep", "Gives memory back", SleepBody),
    _admin("wake", "Ends a sleep", ModelBody),
    _admin("reset_prefix_cache", "Forgets every cached prefix", ModelBody),
    _admin("update_weights", "Replaces the weights", UpdateWeightsBody, needs_body=True),
    _admin("abort", "Ends the requests with an id, whichever key made them", AbortBody, needs_body=True),
    Operation(
        "GET", "/admin/trace", Tag.ADMIN, "What host and device did in the last steps, for Perfetto",
        key=Key.ADMIN, query=("steps", "model"),
    ),
    Operation("GET", "/openapi.json", Tag.PAGES, "This document"),
    _page("/", "The playground"),
    _page("/docs", "This document, for people"),
    _page("/static/{path}", "The files of the pages", "application/octet-stream"),
)  # fmt: skip
