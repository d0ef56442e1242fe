"""The `input` of a request: a text, or a list of items: messages, reasoning, calls and their results, and others."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

import orjson
from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationInfo, model_validator

from server.api.openai.chat_request import MAX_PARTS, as_text
from server.api.openai.media_parts import DETAILS, text_of_file
from server.api.responses.client_tools import ClientTools
from server.generation.roles import Role
from server.media.picture import NOTE
from server.protocol.base_models import MAX_NAME_CHARS, LenientModel, StrictModel, UnknownFields, bounded
from server.protocol.errors import invalid_value, shorten
from server.protocol.json_limits import is_deeper
from server.protocol.tools import as_arguments

MAX_ITEMS = 4096  # of one request
MAX_ID_LENGTH = 256  # characters of an id that a client names
MAX_DEPTH = 64  # of lists and objects in an item's fields

_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text"})

ItemId = Annotated[str, Field(min_length=1, max_length=MAX_ID_LENGTH)]


# What stands in the place of content that is not text, for a model that takes text alone.
_NOTES = {
    "input_image": NOTE,
    "input_file": "[A file was left out here, because this model cannot read it.]",
    "input_audio": "[A recording was left out here, because this model cannot hear it.]",
    "input_video": "[A video was left out here, because this model cannot see it.]",
    "computer_screenshot": "[A screenshot was left out here, because this model cannot see images.]",
    "encrypted_content": "",
}


_PICTURES = ("input_image", "computer_screenshot")


def _as_content(value: Any, info: ValidationInfo) -> str | list[dict[str, Any]]:
    """As `_as_text`, but parts, as the API has them, of a content with a picture."""
    if not isinstance(value, list) or not any(_has_picture(part) for part in value[:MAX_PARTS]):
        return _as_text(value, info)
    if len(value) > MAX_PARTS:
        raise ValueError(f"content has {len(value)} entries; at most {MAX_PARTS} are allowed")
    return [
        _picture_part(part, f"content[{place}]") if _has_picture(part) else input_text(_as_text([part], info))
        for place, part in enumerate(value)
    ]


def _has_picture(part: Any) -> bool:
    return _kind_of(part) in _PICTURES and isinstance(_url_of(part), str)


def _url_of(part: dict[str, Any]) -> Any:
    """The address of a picture, which some clients send in an object, as chats have it."""
    given = part.get("image_url")
    return given.get("url") if isinstance(given, dict) else given


def _picture_part(part: dict[str, Any], path: str) -> dict[str, Any]:
    given = part["image_url"]
    detail = part.get("detail") or (given.get("detail") if isinstance(given, dict) else None)
    if detail not in (None, *DETAILS):
        raise ValueError(f"{path} has the detail {shorten(detail)}; it must be one of {', '.join(DETAILS)}")
    return {"type": "input_image", "image_url": _url_of(part), "detail": detail or "auto"}


def input_text(text: str) -> dict[str, Any]:
    """A text part of a client's message."""
    return {"type": "input_text", "text": text}


def _as_text(value: Any, info: ValidationInfo) -> str:
    """The text of a content, with notes where it has a file, or a picture without an address."""

    def text_of(part: Any) -> str:
        kind = _kind_of(part)
        if kind is None or kind not in _NOTES:
            return _text_of_part(part)
        told = text_of_file(part) if kind == "input_file" else None
        if told is None:
            report(info, f"input[].{info.field_name}.{kind}")
        return _NOTES[kind] if told is None else told

    return as_text(value, text_of)


def _as_output(value: Any, info: ValidationInfo) -> str | list[dict[str, Any]]:
    """The text of a call's result, which some clients send as one part or as an object of their own."""
    if isinstance(value, dict):
        kind = _kind_of(value)
        value = [value] if kind in _NOTES or kind in _TEXT_PARTS else _from_object(value)
    return _as_content("" if value is None else value, info)


def _kind_of(part: Any) -> str | None:
    """The `type` of a part; None where it is not text."""
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else None


def _from_object(value: dict[str, Any]) -> Any:
    if isinstance(value.get("content"), str | list):
        return value["content"]
    return orjson.dumps(value).decode() if not is_deeper(value, MAX_DEPTH) else value


def _text_of_part(part: Any) -> str:
    kind = _kind_of(part)
    if kind is not None and kind not in _TEXT_PARTS:
        raise ValueError(f"content has a part of type {shorten(kind)}; only text is supported by this server")
    text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
    if kind is None or not isinstance(text, str):
        raise ValueError(f'content has the part {shorten(part)}; it must look like {{"type":"input_text","text":"…"}}')
    return text


def report(info: ValidationInfo, name: str) -> None:
    """Reports a part of the body as ignored."""
    if isinstance(info.context, UnknownFields):
        info.context.add(name)


def _shallow(value: Any) -> Any:
    if is_deeper(value, MAX_DEPTH):
        raise ValueError(f"an item is nested deeper than {MAX_DEPTH} levels, the limit")
    return value


_Parts = str | list[dict[str, Any]]
Text = Annotated[str, BeforeValidator(_as_text, json_schema_input_type=_Parts)]
Content = Annotated[_Parts, BeforeValidator(_as_content, json_schema_input_type=_Parts)]
Output = Annotated[_Parts, BeforeValidator(_as_output, json_schema_input_type=_Parts)]
Arguments = Annotated[str, BeforeValidator(as_arguments, json_schema_input_type=str | dict[str, Any])]
Json = Annotated[dict[str, Any], BeforeValidator(_shallow, json_schema_input_type=dict[str, Any])]


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
    role: Role
    content: Content
    phase: str | None = None  # of an answer's message; not part of the prompt


class FunctionCallItem(Item):
    """A call that the model has made."""

    type: Literal["function_call"]
    call_id: ItemId
    name: str
    namespace: str | None = None
    arguments: Arguments = ""


class FunctionCallOutputItem(Item):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: ItemId
    output: Output


class CustomToolCallItem(Item):
    """A call of a custom tool."""

    type: Literal["custom_tool_call"]
    call_id: ItemId
    name: str
    namespace: str | None = None
    input: str


class ShellCallItem(Item):
    """A call of a shell, with the commands in its action."""

    type: Literal["local_shell_call", "shell_call"]
    call_id: ItemId | None = None  # its `id` where it has none
    action: Json


class ApplyPatchCallItem(Item):
    """A call that changes a file."""

    type: Literal["apply_patch_call"]
    call_id: ItemId
    operation: Json


class ToolSearchCallItem(Item):
    """A search for tools."""

    type: Literal["tool_search_call"]
    call_id: ItemId | None = None
    execution: str | None = None
    arguments: Any = None


class ToolSearchOutputItem(Item):
    """The tools that a search has found."""

    type: Literal["tool_search_output"]
    call_id: ItemId | None = None
    execution: str | None = None
    tools: ClientTools = Field(default_factory=list)


class ServerCallItem(Item):
    """A call that another server has made and answered by itself."""

    type: Literal["mcp_call", "code_interpreter_call"]
    status: str | None = None  # type: ignore[assignment]
    container_id: str | None = None
    name: str | None = None
    server_label: str | None = None
    arguments: Arguments = "{}"
    code: str | None = None
    output: str | None = None
    outputs: Annotated[list[Json], Field(fail_fast=True), bounded("outputs", MAX_PARTS)] | None = None
    error: Any = None


class OtherOutputItem(Item):
    """The result of a call that is not a function's."""

    status: str | None = None  # type: ignore[assignment]  # that of a patch may be "failed"

    type: Literal["custom_tool_call_output", "local_shell_call_output", "apply_patch_call_output"]
    call_id: ItemId | None = None
    output: Output = ""


class ShellCallOutputItem(Item):
    """What the commands of a `shell_call` have written."""

    type: Literal["shell_call_output"]
    call_id: ItemId
    output: Annotated[list[Json], Field(fail_fast=True), bounded("output", MAX_PARTS)]
    max_output_length: int | None = None


_SEAL = "eagre-1."


def sealed(text: str) -> str:
    """The `encrypted_content` of an item of this server. Only clients that keep it read it, and it is their own."""
    return _SEAL + base64.b64encode(text.encode("utf-8", "replace")).decode()


def unsealed(content: str | None) -> str | None:
    """What `sealed` was made of; None where another server has made the content."""
    if content is None or not content.startswith(_SEAL):
        return None
    try:
        return base64.b64decode(content.removeprefix(_SEAL), validate=True).decode()
    except ValueError:
        return None


class ReasoningItem(Item):
    """The model's reasoning before an answer or a call."""

    type: Literal["reasoning"]
    summary: Text = ""
    content: Text = ""
    encrypted_content: str | None = None

    @model_validator(mode="after")
    def _tell_what_cannot_be_read(self, info: ValidationInfo) -> ReasoningItem:
        if self.encrypted_content and not self.content and unsealed(self.encrypted_content) is None:
            report(info, "input[].encrypted_content")
        return self


class CompactionItem(Item):
    """The summary of a conversation; that of another server cannot be read here."""

    type: Literal["compaction", "compaction_summary", "context_compaction"]
    encrypted_content: str | None = None

    @model_validator(mode="after")
    def _tell_what_cannot_be_read(self, info: ValidationInfo) -> CompactionItem:
        if unsealed(self.encrypted_content) is None:
            report(info, f"input[].{self.type}")
        return self


class AdditionalToolsItem(Item):
    """Tools that join those of the request."""

    type: Literal["additional_tools"]
    role: str | None = None
    tools: ClientTools


class ItemReference(StrictModel):
    """An item of a stored response, by its id."""

    type: Literal["item_reference"]
    id: ItemId


class OtherItem(LenientModel):
    """An item that says nothing to the model, or that is not known: it is kept and is no part of the prompt."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    type: str
    id: ItemId | None = None

    @model_validator(mode="before")
    @classmethod
    def _passed_over(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, dict):
            report(info, f"input[].{str(value.get('type'))[:MAX_NAME_CHARS]}")
            if value.get("id") is None:
                value = {name: part for name, part in value.items() if name != "id"}
        return _shallow(value)


_CLASSES: tuple[tuple[type[Any], tuple[str, ...]], ...] = (
    (MessageItem, ("message",)),
    (FunctionCallItem, ("function_call",)),
    (FunctionCallOutputItem, ("function_call_output",)),
    (CustomToolCallItem, ("custom_tool_call",)),
    (ShellCallItem, ("local_shell_call", "shell_call")),
    (ApplyPatchCallItem, ("apply_patch_call",)),
    (ToolSearchCallItem, ("tool_search_call",)),
    (ToolSearchOutputItem, ("tool_search_output",)),
    (ServerCallItem, ("mcp_call", "code_interpreter_call")),
    (OtherOutputItem, ("custom_tool_call_output", "local_shell_call_output", "apply_patch_call_output")),
    (ShellCallOutputItem, ("shell_call_output",)),
    (ReasoningItem, ("reasoning",)),
    (CompactionItem, ("compaction", "compaction_summary", "context_compaction")),
    (AdditionalToolsItem, ("additional_tools",)),
    (ItemReference, ("item_reference",)),
)
_TAGS = {kind: f"<{kinds[0]}>" for _, kinds in _CLASSES for kind in kinds}


def _tag_of(item: Any) -> str:
    return _TAGS.get(item["type"] if isinstance(item, dict) else item.type, "<other>")


# The tags of a union's members have angle brackets, which keep them out of the paths in errors.
InputItem = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[FunctionCallItem, Tag("<function_call>")]
    | Annotated[FunctionCallOutputItem, Tag("<function_call_output>")]
    | Annotated[CustomToolCallItem, Tag("<custom_tool_call>")]
    | Annotated[ShellCallItem, Tag("<local_shell_call>")]
    | Annotated[ApplyPatchCallItem, Tag("<apply_patch_call>")]
    | Annotated[ToolSearchCallItem, Tag("<tool_search_call>")]
    | Annotated[ToolSearchOutputItem, Tag("<tool_search_output>")]
    | Annotated[ServerCallItem, Tag("<mcp_call>")]
    | Annotated[OtherOutputItem, Tag("<custom_tool_call_output>")]
    | Annotated[ShellCallOutputItem, Tag("<shell_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")]
    | Annotated[CompactionItem, Tag("<compaction>")]
    | Annotated[AdditionalToolsItem, Tag("<additional_tools>")]
    | Annotated[ItemReference, Tag("<item_reference>")]
    | Annotated[OtherItem, Tag("<other>")],
    Discriminator(_tag_of),
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
    if not isinstance(kind, str) or not kind:
        raise invalid_value(f"{path}.type is {shorten(kind)}; it must be a string", f"{path}.type")
    return item
