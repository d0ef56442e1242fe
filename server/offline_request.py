"""From the arguments of a Python call to the request that an HTTP client would have sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

from pydantic import ValidationError

from sampling.params import InvalidParameter, SamplingParams
from server.errors import ApiError, shorten, to_api_error
from server.requests import ChatCompletionRequest, CompletionRequest, GenerationRequest

Messages: TypeAlias = Sequence[Mapping[str, Any]]

# Of the wire's parameters, those that say nothing to a caller in the same process.
_WIRE_ONLY = frozenset({"model", "request_id", "return_token_ids", "stream", "stream_options", "user"})


def is_one_prompt(prompts: object) -> bool:
    """Whether it is a text or a list of token ids, and not a list of either."""
    return isinstance(prompts, str) or (
        isinstance(prompts, Sequence) and len(prompts) > 0 and all(isinstance(item, int) for item in prompts)
    )


def is_one_conversation(messages: object) -> bool:
    """Whether it is a list of messages, and not a list of such lists."""
    return isinstance(messages, Sequence) and len(messages) > 0 and isinstance(messages[0], Mapping)


def completion_request(prompt: object, params: SamplingParams | None, options: Mapping[str, Any]) -> CompletionRequest:
    """
    Raises:
        InvalidParameter: a parameter is unknown or outside its limits.
    """
    if not isinstance(prompt, str):
        if not isinstance(prompt, Sequence):
            raise InvalidParameter("prompt", f"prompt is {shorten(prompt)}; it must be a text or a list of token ids")
        prompt = list(prompt)
    try:
        return CompletionRequest.parse({**_body(params, options), "prompt": [prompt]})
    except (ApiError, ValidationError) as error:
        raise as_invalid_parameter(error) from None


def chat_request(
    messages: Messages, params: SamplingParams | None, options: Mapping[str, Any]
) -> ChatCompletionRequest:
    """
    Raises:
        InvalidParameter: a parameter is unknown or outside its limits.
    """
    try:
        return ChatCompletionRequest.parse({**_body(params, options), "messages": list(messages)})
    except (ApiError, ValidationError) as error:
        raise as_invalid_parameter(error) from None


def as_invalid_parameter(error: ApiError | ValidationError, field: str = "prompt") -> InvalidParameter:
    """The engine's own kind of error; `field` where the error names no parameter."""
    refusal = to_api_error(error)
    return InvalidParameter(refusal.param or field, refusal.message)


def field_of(request: GenerationRequest) -> str:
    """Wire name of what the request generates from."""
    return "messages" if isinstance(request, ChatCompletionRequest) else "prompt"


def _body(params: SamplingParams | None, options: Mapping[str, Any]) -> dict[str, Any]:
    for name in sorted(_WIRE_ONLY.intersection(options)):
        raise InvalidParameter(name, f"{name} is a parameter of the HTTP API alone")
    if params is None:
        return dict(options)
    return {**asdict(params), "stop_token_ids": list(params.stop_token_ids), **options}
