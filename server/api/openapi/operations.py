"""All routes of the server, with their request and response models."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from pydantic import BaseModel

from server.admission.probes import LIVENESS, READINESS
from server.api.anthropic.messages_request import CountTokensRequest, MessagesRequest
from server.api.batches.batch_requests import NewBatch
from server.api.conversations.conversation_requests import AddedItems, ConversationChange, NewConversation
from server.api.llama_cpp.completion_request import InfillRequest, LlamaCompletionRequest
from server.api.llama_cpp.queries import EmbeddingRequest, LoadRequest
from server.api.ollama.requests import ChatRequest, EmbedOneRequest, EmbedRequest, GenerateRequest, NamedModel
from server.api.openai.chat_request import ChatCompletionRequest
from server.api.openai.completion_request import CompletionRequest
from server.api.openai.token_requests import DetokenizeRequest, EmbeddingsRequest, TokenizeRequest
from server.api.openapi import answers, batch_answers, messages
from server.api.pooling.classify_request import ClassifyRequest
from server.api.pooling.rerank_request import RerankRequest
from server.api.pooling.score_request import ScoreRequest
from server.api.responses.responses_request import ResponsesRequest
from server.protocol.admin_requests import (
    AbortBody,
    LoadAdapterBody,
    ModelBody,
    ServeBody,
    SleepBody,
    UnloadAdapterBody,
    UpdateWeightsBody,
)


class Tag(StrEnum):
    """Groups of routes, in the order in which they are shown."""

    GENERATING = "Generating"
    RESPONSES = "Responses and conversations"
    BATCHES = "Files and batches"
    TOKENS = "Tokens and embeddings"
    MODELS = "Models"
    MCP = "MCP servers"
    OLLAMA = "Ollama"
    LLAMA_CPP = "llama.cpp"
    HEALTH = "Health"
    ADMIN = "Administration"
    PAGES = "Pages"


class Key(StrEnum):
    """Whose API key a route requires, where keys are set."""

    CLIENT = "client"
    ADMIN = "admin"
    NOBODY = "nobody"


Method: TypeAlias = Literal["GET", "POST", "DELETE"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One HTTP method of one path."""

    method: Method
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


def _ollama(method: Method, name: str, summary: str, body: type[BaseModel] | None = None) -> Operation:
    return Operation(method, f"/api/{name}", Tag.OLLAMA, summary, body, error=answers.OllamaError)


def _llama(
    method: Method, path: str, summary: str, body: type[BaseModel] | None = None, query: tuple[str, ...] = ()
) -> Operation:
    return Operation(method, path, Tag.LLAMA_CPP, summary, body, error=answers.LlamaError, query=query)


def _page(path: str, summary: str, kind: str = "text/html") -> Operation:
    return Operation("GET", path, Tag.PAGES, summary, answer=kind, key=Key.NOBODY)


_PAGE = ("limit", "order", "after")

OPERATIONS = (
    Operation(
        "POST", "/v1/chat/completions", Tag.GENERATING, "Creates a chat completion, as JSON or as server-sent events",
        ChatCompletionRequest, answer=answers.ChatCompletion, event=answers.ChatChunk,
    ),
    Operation(
        "POST", "/v1/completions", Tag.GENERATING, "Creates a completion of a prompt, as JSON or as server-sent events",
        CompletionRequest, answer=answers.Completion, event=answers.Completion,
    ),
    Operation(
        "POST", "/v1/messages", Tag.GENERATING, "Creates a message, as Anthropic's API does", MessagesRequest,
        answer=messages.AnthropicMessage, event=messages.MessageEvent, error=messages.AnthropicError,
    ),
    Operation(
        "POST", "/v1/messages/count_tokens", Tag.TOKENS, "Counts the tokens of a conversation, as Anthropic's API does",
        CountTokensRequest, answer=messages.TokenCount, error=messages.AnthropicError,
    ),
    _ollama("POST", "chat", "Creates the next message of a conversation, as lines of JSON or whole", ChatRequest),
    _ollama("POST", "generate", "Creates an answer to a prompt, as lines of JSON or whole", GenerateRequest),
    _ollama("POST", "embed", "Creates the embeddings of texts", EmbedRequest),
    _ollama("POST", "embeddings", "Creates the embedding of one text", EmbedOneRequest),
    _ollama("GET", "tags", "Lists the models"),
    _ollama("GET", "ps", "Lists the models that are in memory"),
    _ollama("POST", "show", "Describes a model", NamedModel),
    _ollama("GET", "version", "The version of Ollama whose API this is"),
    _ollama("POST", "pull", "Succeeds for a model that is served; administrators fetch others", NamedModel),
    _ollama("DELETE", "delete", "Deletes a fetched model, for administrators alone", NamedModel),
    _llama("POST", "/completion", "Creates a completion, whole or as server-sent events", LlamaCompletionRequest),
    _llama("POST", "/completions", "The same as `/completion`", LlamaCompletionRequest),
    Operation(
        "POST", "/chat/completions", Tag.LLAMA_CPP,
        "As `/v1/chat/completions`, but continues an assistant's message at the end", ChatCompletionRequest,
        answer=answers.ChatCompletion, event=answers.ChatChunk,
    ),
    _llama("POST", "/infill", "Creates what stands between two texts", InfillRequest),
    _llama("POST", "/embedding", "Creates the embeddings of texts", EmbeddingRequest),
    _llama("POST", "/embeddings", "The same as `/embedding`", EmbeddingRequest),
    _llama("POST", "/apply-template", "The text that the chat template makes of a conversation", ChatCompletionRequest),
    _llama("GET", "/props", "Properties of the server and of a model", query=("model",)),
    _llama("GET", "/slots", "The places of running requests", query=("model",)),
    _llama("GET", "/lora-adapters", "Lists the adapters of a model, the first one by default", query=("model",)),
    _llama("GET", "/models", "The same as `/v1/models`"),
    _llama("POST", "/models/load", "Brings a served model into memory", LoadRequest),
    Operation(
        "POST", "/models/unload", Tag.LLAMA_CPP, "Puts a model to sleep until the next request for it", LoadRequest,
        error=answers.LlamaError, key=Key.ADMIN,
    ),
    Operation(
        "POST", "/v1/load_lora_adapter", Tag.ADMIN,
        "Serves an adapter from a folder on the server's machine (with `--enable-lora`), as vLLM does", LoadAdapterBody,
        answer="text/plain", key=Key.ADMIN,
    ),
    Operation(
        "POST", "/v1/unload_lora_adapter", Tag.ADMIN, "Serves an adapter no longer; requests that run keep it",
        UnloadAdapterBody, answer="text/plain", key=Key.ADMIN,
    ),
    Operation("GET", "/v1/stream", Tag.GENERATING, "A WebSocket on which many generations run at once", is_socket=True),
    Operation(
        "POST", "/v1/requests/{id}/cancel", Tag.GENERATING, "Cancels a request by its id", answer=answers.Cancellation,
    ),
    Operation(
        "DELETE", "/v1/requests/{id}", Tag.GENERATING, "Cancels a request by its id", answer=answers.Cancellation,
    ),
    Operation(
        "GET", "/v1/requests", Tag.ADMIN, "Lists the last requests of all clients (with `--inspect-requests`)",
        key=Key.ADMIN, query=("limit", "before"),
    ),
    Operation(
        "GET", "/v1/requests/{id}", Tag.ADMIN, "One of the last requests, with its tokens and events", key=Key.ADMIN,
        query=("number",),
    ),
    Operation(
        "POST", "/v1/responses", Tag.RESPONSES,
        "Creates a response, as JSON, as server-sent events, or in the background", ResponsesRequest,
        event=answers.ResponseEvent,
    ),
    Operation(
        "POST", "/v1/responses/input_tokens", Tag.RESPONSES, "Counts the tokens of a response's prompt",
        ResponsesRequest, answer=answers.InputTokens,
    ),
    Operation(
        "POST", "/v1/responses/compact", Tag.RESPONSES, "Replaces a conversation by its summary", ResponsesRequest,
    ),
    Operation("GET", "/v1/responses", Tag.RESPONSES, "A WebSocket on which many responses are made", is_socket=True),
    Operation(
        "GET", "/v1/responses/{id}", Tag.RESPONSES, "A stored response, or its events",
        query=("stream", "starting_after"), event=answers.ResponseEvent,
    ),
    Operation("DELETE", "/v1/responses/{id}", Tag.RESPONSES, "Deletes a response"),
    Operation("POST", "/v1/responses/{id}/cancel", Tag.RESPONSES, "Cancels a response that is made in the background"),
    Operation(
        "GET", "/v1/responses/{id}/input_items", Tag.RESPONSES, "Lists the input items of a response", query=_PAGE,
    ),
    Operation("POST", "/v1/conversations", Tag.RESPONSES, "Creates a conversation", NewConversation, needs_body=False),
    Operation("GET", "/v1/conversations/{id}", Tag.RESPONSES, "A conversation"),
    Operation(
        "POST", "/v1/conversations/{id}", Tag.RESPONSES, "Replaces the metadata of a conversation", ConversationChange,
    ),
    Operation("DELETE", "/v1/conversations/{id}", Tag.RESPONSES, "Deletes a conversation"),
    Operation("GET", "/v1/conversations/{id}/items", Tag.RESPONSES, "Lists the items of a conversation", query=_PAGE),
    Operation("POST", "/v1/conversations/{id}/items", Tag.RESPONSES, "Adds items to a conversation", AddedItems),
    Operation("GET", "/v1/conversations/{id}/items/{item}", Tag.RESPONSES, "One item of a conversation"),
    Operation("DELETE", "/v1/conversations/{id}/items/{item}", Tag.RESPONSES, "Deletes an item of a conversation"),
    Operation(
        "POST", "/v1/files", Tag.BATCHES, "Uploads a file for a batch, as a form with `purpose` and `file`",
        answer=batch_answers.FileObject,
    ),
    Operation(
        "GET", "/v1/files", Tag.BATCHES, "Lists the files", answer=batch_answers.FileList, query=(*_PAGE, "purpose"),
    ),
    Operation("GET", "/v1/files/{id}", Tag.BATCHES, "A file without its content", answer=batch_answers.FileObject),
    Operation("DELETE", "/v1/files/{id}", Tag.BATCHES, "Deletes a file", answer=batch_answers.DeletedFile),
    Operation(
        "GET", "/v1/files/{id}/content", Tag.BATCHES, "The content of a file", answer="application/octet-stream",
    ),
    Operation(
        "POST", "/v1/batches", Tag.BATCHES, "Creates a batch of the requests in a file", NewBatch,
        answer=batch_answers.BatchObject,
    ),
    Operation(
        "GET", "/v1/batches", Tag.BATCHES, "Lists the batches", answer=batch_answers.BatchList,
        query=("limit", "after"),
    ),
    Operation("GET", "/v1/batches/{id}", Tag.BATCHES, "A batch", answer=batch_answers.BatchObject),
    Operation("POST", "/v1/batches/{id}/cancel", Tag.BATCHES, "Cancels a batch", answer=batch_answers.BatchObject),
    Operation(
        "GET", "/v1/streams/{id}", Tag.GENERATING, "Resumes a resumable stream after a lost connection",
        answer="text/event-stream", query=("after",),
    ),
    Operation(
        "DELETE", "/v1/streams/{id}", Tag.GENERATING, "Stops a resumable stream and deletes its events",
        answer=answers.DeletedStream,
    ),
    Operation(
        "POST", "/v1/embeddings", Tag.TOKENS, "Creates embeddings of length 1", EmbeddingsRequest,
        answer=answers.Embeddings,
    ),
    *(
        Operation(
            "POST", path, Tag.TOKENS, "Orders documents by their scores with a query, as Jina and Cohere do",
            RerankRequest, answer=answers.Ranking,
        )
        for path in ("/v1/rerank", "/rerank", "/v2/rerank")
    ),
    *(
        Operation("POST", path, Tag.TOKENS, "Scores pairs of texts, as vLLM does", ScoreRequest, answer=answers.Scores)
        for path in ("/v1/score", "/score")
    ),
    Operation(
        "POST", "/classify", Tag.TOKENS, "Gives each text a label, as vLLM does", ClassifyRequest,
        answer=answers.Classes,
    ),
    Operation(
        "POST", "/tokenize", Tag.TOKENS, "Tokenises a text or a conversation", TokenizeRequest, answer=answers.Tokens,
    ),
    Operation(
        "POST", "/detokenize", Tag.TOKENS, "Turns token ids into text", DetokenizeRequest,
        answer=answers.DetokenizedText,
    ),
    Operation(
        "POST", "/v1/chat/completions/render", Tag.TOKENS,
        "What a chat body would give to the model, without an answer", ChatCompletionRequest,
        answer=answers.RenderedPrompt,
    ),
    Operation(
        "POST", "/v1/chat/completions/input_tokens", Tag.TOKENS,
        "Counts the tokens of a chat completion's prompt, as llama.cpp does", ChatCompletionRequest,
        answer=messages.TokenCount,
    ),
    Operation(
        "POST", "/v1/completions/render", Tag.TOKENS,
        "What a completion body would give to the model, one entry for each prompt", CompletionRequest,
    ),
    Operation("GET", "/v1/models", Tag.MODELS, "Lists the served models and their limits", answer=answers.ModelList),
    Operation("GET", "/v1/models/{id}", Tag.MODELS, "One served model", answer=answers.ModelCard),
    *(
        Operation("GET", path, Tag.MODELS, "Properties of the server and its model, for routers")
        for path in ("/server_info", "/get_server_info", "/model_info", "/get_model_info")
    ),
    Operation("GET", "/v1/mcp", Tag.MCP, "Lists the MCP servers of `--mcp-config`", answer=answers.McpServers),
    Operation(
        "POST", "/v1/mcp/{name}", Tag.MCP, "Passes a JSON-RPC message to an MCP server, and its answer back",
    ),
    Operation("DELETE", "/v1/mcp/{name}", Tag.MCP, "Ends a session with an MCP server"),
    Operation("GET", "/version", Tag.HEALTH, "Name and version of the server", answer=answers.Version),
    Operation("GET", "/api/hello", Tag.HEALTH, "Says hello, for Claude Code"),
    Operation("GET", LIVENESS, Tag.HEALTH, "Liveness probe: whether the engine loop runs", key=Key.NOBODY),
    Operation(
        "GET", READINESS, Tag.HEALTH, "Readiness probe: whether requests are accepted", answer=answers.Readiness,
        key=Key.NOBODY,
    ),
    Operation("GET", "/health", Tag.HEALTH, "Readiness with statistics of each model's engine"),
    Operation("GET", "/metrics", Tag.HEALTH, "Metrics in the text format of Prometheus", answer="text/plain"),
    Operation(
        "GET", "/engine/events", Tag.HEALTH, "What the engine does, as server-sent events", answer="text/event-stream",
        query=("model",),
    ),
    _admin("pause", "Pauses the engine: requests queue up, and everything is kept", ModelBody),
    _admin("resume", "Ends a pause", ModelBody),
    _admin("sleep", "Frees the memory of the pages, and of the weights on demand; requests queue up", SleepBody),
    _admin("wake", "Ends a sleep; requests that had begun are computed again", ModelBody),
    _admin("reset_prefix_cache", "Clears the prefix cache; 409 while requests hold pages", ModelBody),
    _admin(
        "update_weights", "Replaces the weights; 409 while requests run, unless `drain` waits for them",
        UpdateWeightsBody, needs_body=True,
    ),
    _admin("abort", "Aborts the requests with an id, of any key", AbortBody, needs_body=True),
    Operation(
        "GET", "/admin/models", Tag.ADMIN, "Lists the built-in models, and those of the Hub that are on this machine",
        answer=answers.AvailableModels, key=Key.ADMIN,
    ),
    _admin("models", "Serves a fetched model beside the others, until the server ends", ServeBody, needs_body=True),
    Operation(
        "GET", "/admin/trace", Tag.ADMIN, "The last steps as a trace file for Perfetto", key=Key.ADMIN,
        query=("steps", "model"),
    ),
    Operation(
        "GET", "/admin/usage", Tag.ADMIN, "What the keys of each name have used: requests and tokens",
        answer=answers.KeyUsages, key=Key.ADMIN,
    ),
    Operation(
        "POST", "/admin/usage/reset", Tag.ADMIN, "Begins these counts at zero; the answer has them until now",
        answer=answers.KeyUsages, key=Key.ADMIN,
    ),
    Operation("GET", "/openapi.json", Tag.PAGES, "The OpenAPI document of this server"),
    _page("/", "The playground"),
    _page("/docs", "The OpenAPI document as a page on which routes can be tried"),
    _page("/static/{path}", "The files of the pages", "application/octet-stream"),
)  # fmt: skip
