"""A generation request as compact JSON, for the request log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import BaseModel

from server.generation.generation_request import GenerationRequest
from server.generation.prompt_sources import Conversation, InfillPrompt, PromptSource, TextPrompt
from server.media.picture import Message

UNWRITABLE = b'{"prompts":[],"parameters":{}}'  # orjson reads deeper nesting than it writes


def encode_request(request: GenerationRequest) -> bytes:
    """The prompts and given parameters by their wire names, without salts, which are secrets. May run in any thread."""
    wish = request.grammar
    parameters = {
        **request.sampling,
        request.max_tokens_parameter: request.max_tokens,
        "n": request.num_choices if request.num_choices > 1 else None,
        "best_of": request.num_sampled if request.num_sampled > request.num_choices else None,
        "bad_words": request.bad_words,
        "dry_sequence_breakers": request.sequence_breakers,
        "stop": request.stops or None,
        "include_stop_str_in_output": request.include_stop or None,
        "truncate_prompt_tokens": request.most_prompt_tokens,
        "truncation_side": "right" if request.keeps_first_tokens else None,
        "num_prompt_output_tokens": request.num_prompt_output_tokens or None,
        "priority": request.priority or None,
        "timeout": request.timeout,
        **({} if wish is None else {wish.parameter: wish.value}),
    }
    given = {name: value for name, value in parameters.items() if value is not None}
    asked = {"prompts": list(map(_shape, request.prompts)), "parameters": given}
    try:
        encoded = orjson.dumps(asked, default=_plain, option=orjson.OPT_NON_STR_KEYS)
        return bytes(memoryview(encoded))  # orjson's own bytes may take many times the memory of their length
    except orjson.JSONEncodeError:
        return UNWRITABLE


def _shape_message(message: Message) -> Message:
    """The message without the bytes of its pictures."""
    if isinstance(message["content"], str):
        return message
    parts = [{"type": "image"} if part["type"] == "image" else part for part in message["content"]]
    return {**message, "content": parts}


def _shape(source: PromptSource) -> dict[str, Any]:
    """Returns the body fields of a prompt; none for token ids, because the record has them already."""
    match source:
        case Conversation():
            shape: dict[str, Any] = {"messages": list(map(_shape_message, source.messages))}
            return shape | {
                name: value
                for name, value in (
                    ("tools", source.tools),
                    ("continue_final_message", source.continues),
                    ("chat_template_kwargs", source.variables),
                )
                if value
            }
        case TextPrompt():
            return {"prompt": source.text}
        case InfillPrompt():
            return {"prompt": source.before, "suffix": source.behind}
    return {}


def _plain(value: Any) -> Any:
    """Converts a value that orjson cannot encode (its `default` function)."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    return str(value)
