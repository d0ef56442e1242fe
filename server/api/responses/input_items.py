"""The `input` of a request: a text, or a list of items, each a message, a call, or a call's result."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationInfo, model_validator

from server.api.openai.chat_request import as_text
from server.protocol.base_models import StrictModel
from server.protocol.errors import ApiError, invalid_value, shorten
from server.protocol.unknown_fields import UnknownFields

MAX_ITEMS = 4096  # of one request
MAX_ID_LENGTH = 256  # characters of an id that a client names

_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text"})

ItemId = Annotated[str, Field(min_length=1, max_length=MAX_ID_LENGTH)]


def _as_content(value: Any) -> str:
    return as_text(value, _text_of_part)


def _text_of_part(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind not in _TEXT_PARTS:
        raise ValueError(f"content has a part of type {shorten(kind)}; only text is supported by this server")
    text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
    if kind is None or not isinstance(text, str):
        raise ValueError(f'content has the part {shorten(part)}; it must look like {{"type":"input_text","text":"…"}}')
    return text


Text = Annotated[str, BeforeValidator(_as_content, json_schema_input_type=str | list[dict[str, Any]])]


class Item(StrictModel):
    """The base class of items, which may be those of an earlier answer as a client's library hands them on."""

    id: ItemId | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _as_libraries_send_it(cls, value: Any, info: ValidationInfo) -> Any:
        unknown = info.context if isinstance(info.context, UnknownFields) else UnknownFields()
        value = unknown.drop_from(value, cls.model_fields, {}, "input[].")
        return {name: part for name, part in value.items() if part is not None} if isinstance(value, dict) else value


class MessageItem(Item):
    """A message. Its `type` may be left out."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Text
    phase: str | None = None  # of an answer's message; not part of the prompt


class FunctionCallItem(Item):
    """A call that the model has made."""

    type: Literal["function_call"]
    call_id: ItemId
    name: str
    arguments: str


class FunctionCallOutputItem(Item):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: ItemId
    output: Text


class ReasoningItem(Item):
    """The model's reasoning before an answer or a call."""

    type: Literal["reasoning"]
    summary: Text = ""
    content: Text = ""
    encrypted_content: str | None = None  # another server's, which cannot be read here


class ItemReference(StrictModel):
    """An item of a stored response, by its id."""

    type: Literal["item_reference"]
    id: ItemId


_KINDS = ("message", "function_call", "function_call_output", "reasoning", "item_reference")

# The tags of a union's members have angle brackets, which keep them out of the paths in errors.
InputItem = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[FunctionCallItem, Tag("<function_call>")]
    | Annotated[FunctionCallOutputItem, Tag("<function_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")]
    | Annotated[ItemReference, Tag("<item_reference>")],
    Discriminator(lambda item: f"<{item['type']}>"),
]


def checked_items(name: str) -> BeforeValidator:
    """Checks the number and the types of a list's items before the items themselves; each has a `type` then.

    `Field(fail_fast=True)` belongs beside it, so that one bad item ends the check.

    Args:
        name: of the parameter, which errors name.
    """

    def check(value: Any) -> Any:
        if not isinstance(value, list):
            raise ValueError(f"{name} is {shorten(value)}; it must be a list of items")
        if len(value) > MAX_ITEMS:
            raise ValueError(f"{name} has {len(value)} entries; at most {MAX_ITEMS} are allowed")
        return [_with_type(item, f"{name}[{at}]") for at, item in enumerate(value)]

    return BeforeValidator(check)


def _with_type(item: Any, path: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise invalid_value(f"{path} is {shorten(item)}; it must be an object", path)
    kind = item.get("type")
    if kind is None:  # the API allows it where the rest shows what is meant
        return {**item, "type": "item_reference" if item.keys() <= {"id", "type"} and "id" in item else "message"}
    if kind not in _KINDS:
        raise ApiError(
            f"{path}.type is {shorten(kind)}; it is not supported by this server, which has {', '.join(_KINDS)}",
            param=f"{path}.type",
            code="unsupported_parameter",
        )
    return item
