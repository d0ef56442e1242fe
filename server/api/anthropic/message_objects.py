"""The JSON objects and events of Anthropic's responses: errors, usage, stop reasons."""

from __future__ import annotations

from typing import Any

import orjson

from engine.interface.types import FinishReason
from server.api.framing import SERVER_SENT_EVENTS, Framing
from server.generation.answers import Usage
from server.protocol.errors import ApiError

REQUEST_ID_HEADER = "request-id"  # by which Anthropic's libraries know an answer

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_UNFINISHED = {
    FinishReason.TIMEOUT: ("the answer has taken longer than it may", 504, "timeout"),
    FinishReason.ABORT: ("the answer was cancelled before its end", 503, "cancelled"),
}


def encode_event(kind: str, **fields: Any) -> bytes:
    """A server-sent event, whose name is in its data too."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


MESSAGE_EVENTS = Framing(
    opening=SERVER_SENT_EVENTS.opening, ping=encode_event("ping"), headers=SERVER_SENT_EVENTS.headers
)


def error_object(error: ApiError, request_id: str) -> dict[str, Any]:
    """The body of an error: `{"type": "error", "error": {…}}`."""
    body = {"type": _TYPES.get(error.status, "invalid_request_error"), "message": error.message}
    return {"type": "error", "error": body, "request_id": request_id}


def encode_error(error: ApiError, request_id: str) -> bytes:
    """An error as the last event of a stream."""
    return b"event: error\ndata: %b\n\n" % orjson.dumps(error_object(error, request_id))


def usage_object(usage: Usage, num_thinking_tokens: int | None) -> dict[str, Any]:
    """The `usage` object, in which no token of the prompt counts twice.

    `num_thinking_tokens` are part of the output; None where reasoning is not parsed.
    """
    body: dict[str, Any] = {
        "input_tokens": usage.num_prompt_tokens - usage.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.num_cached_tokens,
        "output_tokens": usage.num_completion_tokens,
    }
    if num_thinking_tokens is not None:
        body["output_tokens_details"] = {"thinking_tokens": num_thinking_tokens}
    return body


def stop_reason(reason: FinishReason | None, *, is_stop_string: bool, has_calls: bool, is_context_full: bool) -> str:
    """The `stop_reason` of an answer.

    Args:
        is_stop_string: whether one of the request's stop sequences ended it.
        has_calls: whether it has tool calls.
        is_context_full: whether the model had room for fewer tokens than were asked for.

    Raises ApiError if the answer was cut off, for which Anthropic's API has no reason.
    """
    if reason in _UNFINISHED:
        message, status, code = _UNFINISHED[reason]
        raise ApiError(message, status=status, code=code)
    if reason is FinishReason.LENGTH:
        return "model_context_window_exceeded" if is_context_full else "max_tokens"
    if is_stop_string:
        return "stop_sequence"
    return "tool_use" if has_calls else "end_turn"
