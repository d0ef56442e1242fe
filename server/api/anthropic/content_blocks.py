"""The content blocks of request messages. `cache_control`, citations and the like are ignored."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import orjson

from server.protocol.errors import shorten

MAX_BLOCKS = 4096  # of one turn, or of one tool's result

_TEXT = '{"type":"text","text":"…"}'
_SUPPORTED = "text, tool_use, tool_result, thinking, and document with a text in it"


class Text(NamedTuple):
    text: str


class Thinking(NamedTuple):
    """The model's reasoning in an earlier answer."""

    text: str


class ToolUse(NamedTuple):
    """A call of a tool by the model."""

    id: str
    name: str
    input: dict[str, Any]


class ToolResult(NamedTuple):
    """The result of a call."""

    call_id: str
    text: str
    is_error: bool


Block: TypeAlias = Text | Thinking | ToolUse | ToolResult


def read_blocks(value: Any) -> list[Block]:
    """The blocks of a message's `content`; a string is one text block.

    Raises ValueError if it is neither a string nor a list of supported blocks; the message says which part.
    """
    if isinstance(value, str):
        return [Text(value)]
    blocks: list[Block] = []
    for place, part in enumerate(_as_list(value, "content")):
        block = _read(part, f"content[{place}]")
        if block is not None:
            blocks.append(block)
    return blocks


def read_texts(value: Any, name: str) -> list[str]:
    """The texts of a string or of a list of text blocks; null has none. Raises ValueError, with `name`, for others."""
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    return [_read_text(part, f"{name}[{place}]") for place, part in enumerate(_as_list(value, name))]


def _as_list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name} is {shorten(value)}; it must be a string or a list of blocks")
    if len(value) > MAX_BLOCKS:
        raise ValueError(f"{name} has {len(value)} blocks; at most {MAX_BLOCKS} are allowed")
    return value


def _read(part: Any, name: str) -> Block | None:
    """One block; None where the model has no use for it."""
    kind = _kind_of(part, name)
    match kind:
        case "text":
            return Text(_string(part, "text", name))
        case "thinking":
            return Thinking(_string(part, "thinking", name))
        case "redacted_thinking":
            return None
        case "tool_use":
            arguments = part.get("input", {})
            if not isinstance(arguments, dict):
                raise ValueError(f"{name}.input is {shorten(arguments)}; it must be an object")
            try:
                orjson.dumps(arguments)
            except orjson.JSONEncodeError as error:  # orjson reads deeper nesting than it writes
                raise ValueError(f"{name}.input is nested too deeply") from error
            return ToolUse(_string(part, "id", name), _string(part, "name", name), arguments)
        case "tool_result":
            is_error = part.get("is_error") or False
            if not isinstance(is_error, bool):
                raise ValueError(f"{name}.is_error is {shorten(is_error)}; it must be true or false")
            text = "\n".join(read_texts(part.get("content"), f"{name}.content"))
            return ToolResult(_string(part, "tool_use_id", name), text, is_error)
        case "document":
            return Text(_read_text(part, name))
    raise _unsupported(kind, name)


def _read_text(part: Any, name: str) -> str:
    """The text of a text block or of a document with plain text."""
    kind = _kind_of(part, name)
    if kind == "text":
        return _string(part, "text", name)
    source = part.get("source")
    if kind == "document" and isinstance(source, dict) and source.get("type") == "text":
        title = part.get("title")
        return (f"{title}\n" if isinstance(title, str) else "") + _string(source, "data", f"{name}.source")
    raise _unsupported(kind, name)


def _kind_of(part: Any, name: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise ValueError(f"{name} is {shorten(part)}; it must look like {_TEXT}")
    return kind


def _string(part: dict[str, Any], key: str, name: str) -> str:
    value = part.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{name}.{key} is {shorten(value)}; it must be a string")
    return value


def _unsupported(kind: str, name: str) -> ValueError:
    return ValueError(
        f"{name} is a block of type {shorten(kind)}, which this server does not take; it takes {_SUPPORTED}"
    )
