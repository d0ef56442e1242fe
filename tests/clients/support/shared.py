"""What all clients are asked for, and how their answers are judged."""

from __future__ import annotations

import json
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, Field, TypeAdapter

MODEL = "smollm2-135m-instruct"
QUESTION = "Name the capital of France in one sentence."
SCHEMA_NAME = "place"

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}, "days": {"type": "integer", "enum": [1, 2]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER_TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather of a city.", "parameters": WEATHER, "strict": True},
}


class Place(BaseModel):
    """Structured output that a small model brings to an end."""

    city: str = Field(max_length=20)
    is_capital: bool


def strictly(kind: Any, data: bytes | str | dict[str, Any], *, also: frozenset[str] = frozenset()) -> Any:
    """`data` as the SDK's own type, validated strictly: no type is converted, and no field is unknown to the SDK.

    Args:
        also: paths without indices of fields that Eagre adds, as its documents say.
    """
    text = json.dumps(data) if isinstance(data, dict) else data
    value = TypeAdapter(_member(kind, json.loads(text))).validate_json(text, strict=True)
    unknown = set(_unknown(value, ""))
    assert unknown <= also, f"unknown to {type(value).__name__}: {unknown - also}"
    return value


def _member(kind: Any, data: dict[str, Any]) -> Any:
    """The type among those of a union that `data` names as its `type`; of its other types nothing need be told."""
    union = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    for member in get_args(union):
        field = getattr(member, "model_fields", {}).get("type")
        if field is not None and data.get("type") in get_args(field.annotation):
            return member
    assert not get_args(union), f"no event is called {data.get('type')}"
    return kind


def _unknown(value: Any, path: str) -> list[str]:
    if isinstance(value, list | tuple):
        return [found for item in value for found in _unknown(item, path)]
    if not isinstance(value, BaseModel):
        return []
    found = [f"{path}{name}" for name in (value.model_extra or {})]
    for name in type(value).model_fields:
        found += _unknown(getattr(value, name), f"{path}{name}.")
    return found


def is_weather(arguments: str | dict[str, Any]) -> bool:
    """Whether the arguments of a call follow the tool's schema."""
    given = json.loads(arguments) if isinstance(arguments, str) else arguments
    return set(given) == {"city", "days"} and given["city"] in ("Paris", "Oslo") and given["days"] in (1, 2)
