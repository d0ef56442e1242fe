"""POST /chat/completions, without `/v1`: OpenAI's chat completions as llama.cpp's server makes them.

An assistant's message at the end is continued, and a stream begins with the role and ends with the reason alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from server.api.openai.chat import ChatCall, ChatWriter
from server.api.openai.chat_request import ChatCompletionRequest
from server.api.openai.openai_objects import error_object as openai_error_object
from server.api.route import BodyRoute
from server.generation.output_sequence import Delta
from server.protocol.errors import EXCEED_CONTEXT_SIZE, ApiError, ContextLengthExceeded

_ROLE = (
    b'%b,"choices":[{"index":%d,"delta":{"role":"assistant","content":null},"logprobs":null,"finish_reason":null}]%b'
)


def error_object(error: ApiError, request_id: str | None = None) -> dict[str, Any]:
    """OpenAI's error, with llama.cpp's type where the context is too short."""
    body = openai_error_object(error, request_id)
    if isinstance(error, ContextLengthExceeded):
        body["error"]["type"] = EXCEED_CONTEXT_SIZE
    return body


class LlamaChatWriter(ChatWriter):
    """Writes a chat completion, whole or as chunks, of which the first has the role and the last the reason alone."""

    ends_alone = True

    def begin(self) -> list[bytes]:
        self._silent.clear()
        return [_ROLE % (self._head, index, self._constant_tail) for index in range(self._generation.num_choices)]

    def encode(self, deltas: Sequence[Delta]) -> list[bytes]:
        return super().encode([piece for delta in deltas for piece in _apart(delta)])


def _apart(delta: Delta) -> list[Delta]:
    """A delta and the end of its choice, one after the other."""
    if delta.finish_reason is None or not delta.text:
        return [delta]
    end = Delta(
        delta.index, "", [], delta.finish_reason, None if delta.logprobs is None else [],
        matched_stop=delta.matched_stop,
    )  # fmt: skip
    return [replace(delta, finish_reason=None, matched_stop=None), end]


class LlamaChatCall(ChatCall):
    """A chat completion request whose last message is continued where it is an assistant's text."""

    writer_kind = LlamaChatWriter

    @classmethod
    def parse(cls, body: Any) -> LlamaChatCall:
        request = ChatCompletionRequest.parse(body)
        if _is_begun(request):
            request = request.model_copy(update={"continue_final_message": True})
        return cls(request)


def _is_begun(request: ChatCompletionRequest) -> bool:
    """Whether the messages end with the beginning of the answer; raises ApiError where they end with two of them."""
    last = request.messages[-1]
    if request.add_generation_prompt is not None or request.continue_final_message is not None:
        return False
    if last.role != "assistant" or last.calls or not isinstance(last.content, str):
        return False
    if len(request.messages) > 1 and request.messages[-2].role == "assistant":
        raise ApiError(
            "the last two messages are both the assistant's; only one can be the beginning of the answer",
            param="messages",
            code="invalid_messages",
        )
    return True


CHAT = BodyRoute("/chat/completions", LlamaChatCall.parse, error_object)
