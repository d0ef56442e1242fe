"""The response object: the request's parameters, the output and the status."""

from typing import Any

import orjson

from engine.interface.types import FinishReason
from server.api.responses.items import Item
from server.api.responses.responses_request import ResponsesRequest
from server.generation.answers import Usage
from server.protocol.errors import ApiError

Response = dict[str, Any]

# What OpenAI's clients know of errors within a response; everything else is the server's.
_ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


def new_response(body: ResponsesRequest, response_id: str, created_at: int) -> Response:
    """The object of a response that has just begun, without the name of its model.

    Several events repeat the whole object. What a client may have made large is encoded here, once.
    """
    reasoning, text = body.reasoning, body.text
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "completed_at": None,
        "status": "in_progress",
        "background": body.background is True,
        "error": None,
        "incomplete_details": None,
        "instructions": _encoded(body.instructions),
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "model": None,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "presence_penalty": getattr(body, "presence_penalty", None) or 0.0,
        "frequency_penalty": getattr(body, "frequency_penalty", None) or 0.0,
        "previous_response_id": body.previous_response_id,
        "conversation": None if body.conversation is None else {"id": body.conversation},
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": None if reasoning is None else reasoning.effort, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.is_stored,
        "temperature": getattr(body, "temperature", None),
        "text": {
            "format": _encoded({"type": "text"} if text is None or text.format is None else text.format.to_wire()),
            "verbosity": "medium",
        },
        "tool_choice": _encoded(_shape_choice(body)),
        "tools": _encoded([tool.to_wire() for tool in body.tools or ()]),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": getattr(body, "top_p", None),
        "truncation": body.truncation or "disabled",
        "usage": None,
        "user": body.user,
        "metadata": body.metadata or {},
    }


def _encoded(value: Any) -> orjson.Fragment:
    return orjson.Fragment(orjson.dumps(value))


def _shape_choice(body: ResponsesRequest) -> str | dict[str, Any]:
    choice = body.tool_choice or "auto"
    return choice if isinstance(choice, str) else choice.to_wire()


def end_response(
    response: Response, output: list[Item], finish_reason: FinishReason | None, now: int, *, is_shut_down: bool
) -> str:
    """Sets the final status of `response` at `now`; returns the type of its last event."""
    response["output"] = output
    match finish_reason:
        case FinishReason.STOP:
            response["status"], response["completed_at"] = "completed", now
        case FinishReason.LENGTH:
            response["status"], response["incomplete_details"] = "incomplete", {"reason": "max_output_tokens"}
        case FinishReason.ABORT if not is_shut_down:
            response["status"] = "cancelled"
        case FinishReason.ABORT:
            return fail_response(response, output, "the server shuts down", "server_error")
        case _:
            return fail_response(response, output, "the time that the request may take has passed", "server_error")
    return "response.completed" if finish_reason is FinishReason.STOP else "response.incomplete"


def fail_response(response: Response, output: list[Item], message: str, code: str) -> str:
    """Marks `response` as failed; returns the type of its last event."""
    response["output"], response["status"] = output, "failed"
    response["error"] = {"code": code, "message": message}
    return "response.failed"


def code_of(error: ApiError) -> str:
    """The code of an error within a response, which has only a few."""
    return _ERROR_CODES.get(error.status, "server_error")


def usage_object(usage: Usage, num_reasoning_tokens: int) -> dict[str, Any]:
    """The `usage` object of a response."""
    return {
        "input_tokens": usage.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.num_completion_tokens,
        "output_tokens_details": {"reasoning_tokens": num_reasoning_tokens},
        "total_tokens": usage.num_prompt_tokens + usage.num_completion_tokens,
    }
