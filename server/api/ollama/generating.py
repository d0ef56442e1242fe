"""POST /api/chat and /api/generate: from Ollama's bodies to generation requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from engine.interface.types import PromptProgress
from server.api.framing import Framing
from server.api.ollama.answer_writer import NDJSON, AnswerLines, timestamp
from server.api.ollama.requests import ChatRequest, GenerateRequest, GeneratingRequest
from server.api.openai.call import OpenAICall
from server.api.openai.chat import ChatCall
from server.api.openai.completion_request import CompletionRequest
from server.api.openai.completions import CompletionCall
from server.api.openai.logprobs import ChatLogprobs
from server.api.openai.openai_objects import progress_object
from server.api.route import AnswerContext, BodyCall, BodyRoute
from server.generation.generation import Generation
from server.protocol.base_models import UnknownFields
from server.protocol.errors import ApiError, invalid_value


def error_object(error: ApiError, _request_id: str | None = None) -> dict[str, Any]:
    """The body of an error, as Ollama's clients read it."""
    return {"error": error.message}


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """A request without a prompt, which loads a model into memory."""

    model: str
    ignored: Sequence[str]
    is_chat: bool
    unloads: bool  # whether it takes the model out of memory instead, which only administrators may
    keep_alive: float | None  # seconds after which the model sleeps, below 0: never; only administrators may set it

    @classmethod
    def of(cls, asked: GeneratingRequest, *, is_chat: bool) -> LoadRequest:
        return cls(asked.model_name, asked.ignored, is_chat, asked.unloads, asked.keep_alive)

    def to_dict(self, reason: str) -> dict[str, Any]:
        """The answer once the model is in memory, or out of it."""
        text = {"message": {"role": "assistant", "content": ""}} if self.is_chat else {"response": ""}
        head = {"model": self.model, "created_at": timestamp()}
        return {**head, **text, "done": True, "done_reason": reason}


class OllamaCall(BodyCall):
    """A request for an answer, which is that of a chat or of a text completion in another form.

    Args:
        inner: OpenAI's request for the same answer.
        is_chat: whether the answer is a message.
    """

    def __init__(self, body: GeneratingRequest, ignored: Sequence[str], inner: OpenAICall, *, is_chat: bool) -> None:
        self._inner = inner
        self._is_chat = is_chat
        self.keep_alive = body.keep_alive
        super().__init__(inner.request, None, (*body.ignored, *ignored, *inner.ignored), body.is_streamed)

    def make_writer(self, generation: Generation, context: AnswerContext) -> AnswerLines:
        make = self._inner.parts_maker(generation, context) if isinstance(self._inner, ChatCall) else None
        logprobs = self._inner.make_logprobs(generation, context.tokenizer, ChatLogprobs)
        parser = None if make is None else make()
        return AnswerLines(generation, context.model, parser, logprobs, is_chat=self._is_chat)

    def encode_progress(
        self, progress: PromptProgress, index: int, framing: Framing, request_id: str, model: str
    ) -> bytes:
        return framing.frame(orjson.dumps({"model": model, "prompt_progress": progress_object(progress, index)}))


def parse_chat(body: Any) -> OllamaCall | LoadRequest:
    """Raises ApiError, FieldError or ValidationError: the decoded body is not a valid request."""
    asked, unknown = ChatRequest.parse(body), UnknownFields()
    if not asked.messages:
        return LoadRequest.of(asked, is_chat=True)
    inner = ChatCall.parse(asked.to_openai(unknown))
    inner.rename_pictures(lambda path: path.replace(".content[", ".images["))
    return OllamaCall(asked, unknown.ignored, inner, is_chat=True)


def parse_generate(body: Any) -> OllamaCall | LoadRequest:
    """Raises ApiError, FieldError or ValidationError: the decoded body is not a valid request."""
    asked, unknown = GenerateRequest.parse(body), UnknownFields()
    if not asked.prompt and not asked.suffix:
        return LoadRequest.of(asked, is_chat=False)
    inner: OpenAICall
    if asked.is_chat:
        inner = chat = ChatCall.parse(asked.to_openai(unknown))
        chat.rename_pictures(lambda path: path.rpartition(".")[2].replace("content[", "images["))
    else:
        inner = CompletionCall(CompletionRequest.parse(asked.to_openai(unknown)), default_max_tokens=None)
    return OllamaCall(asked, unknown.ignored, inner, is_chat=False)


def _only_generates(asked: OllamaCall | LoadRequest) -> BodyCall:
    if isinstance(asked, LoadRequest):
        raise invalid_value("the request has no prompt", "prompt")
    return asked


CHAT = BodyRoute("/api/chat", lambda body: _only_generates(parse_chat(body)), error_object, NDJSON)
GENERATE = BodyRoute("/api/generate", lambda body: _only_generates(parse_generate(body)), error_object, NDJSON)
