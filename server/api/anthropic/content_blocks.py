"""The content blocks of request messages. `cache_control`, citations and the like are ignored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import orjson

from server.media.picture import NOTE, Content, Picture, as_content
from server.protocol.errors import shorten
from server.protocol.json_limits import is_deeper
from server.protocol.tools import MAX_DEPTH

MAX_BLOCKS = 4096  # of one turn, or of one tool's result

_TEXT = '{"type":"text","text":"…"}'
_SUPPORTED = "text, image, tool_use, tool_result, thinking, document, search_result, and what servers' tools leave"
_DOCUMENT = "[A document was left out here, because this model cannot read it.]"
_SAYS_NOTHING = ("redacted_thinking", "container_upload", "fallback")
_PLAIN_TEXT = ("text", "document", "search_result", "tool_reference")

Report = Callable[[str], None]  # of what is ignored


def _nobody(_: str) -> None:
    pass


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
    content: Content
    is_error: bool


class ToolChange(NamedTuple):
    """A tool that joins those of the request from this message on, or leaves them."""

    name: str
    definition: dict[str, Any] | None  # of one that joins; None where it is among the request's own
    is_removed: bool


Block: TypeAlias = Text | Picture | Thinking | ToolUse | ToolResult | ToolChange


def read_blocks(value: Any, report: Report = _nobody) -> list[Block]:
    """The blocks of a message's `content`; a string is one text block.

    Args:
        report: called with the names of what is left out.

    Raises ValueError if it is neither a string nor a list of supported blocks; the message says which part.
    """
    if isinstance(value, str):
        return [Text(value)]
    blocks: list[Block] = []
    for place, part in enumerate(_as_list(value, "content")):
        block = _read(part, f"content[{place}]", report)
        if block is not None:
            blocks.append(block)
    return blocks


def read_texts(value: Any, name: str, report: Report | None = None) -> list[str]:
    """The texts of a string or of a list of text blocks; null has none. Raises ValueError, with `name`, for others."""
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    return [_read_text(part, f"{name}[{place}]", report) for place, part in enumerate(_as_list(value, name))]


def _read_result(value: Any, name: str, report: Report) -> list[str | Picture]:
    """The texts and pictures of a tool's result."""
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    parts: list[str | Picture] = []
    for place, part in enumerate(_as_list(value, name)):
        path = f"{name}[{place}]"
        if _kind_of(part, path) != "image":
            parts.append(_read_text(part, path, report))
            continue
        try:
            parts.append(_read_picture(part, path))
        except ValueError:  # a tool has made it, and the agent goes on without it
            report("messages[].content.content.image")
            parts.append(NOTE)
    return parts


def _read_picture(part: dict[str, Any], name: str) -> Picture:
    source = part.get("source")
    if not isinstance(source, dict):
        raise ValueError(f"{name}.source is {shorten(source)}; it must be an object")
    if source.get("type") == "url":
        return Picture(name, "image", _string(source, "url", f"{name}.source"))
    if source.get("type") == "base64":
        kind, data = (_string(source, key, f"{name}.source") for key in ("media_type", "data"))
        return Picture(name, "image", f"data:{kind};base64,{data}")
    raise ValueError(f"{name}.source.type is {shorten(source.get('type'))}; it must be base64 or url")


def _as_list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name} is {shorten(value)}; it must be a string or a list of blocks")
    if len(value) > MAX_BLOCKS:
        raise ValueError(f"{name} has {len(value)} blocks; at most {MAX_BLOCKS} are allowed")
    return value


def _read(part: Any, name: str, report: Report) -> Block | None:
    """One block; None where the model has no use for it."""
    kind = _kind_of(part, name)
    match kind:
        case "text":
            return Text(_string(part, "text", name))
        case "thinking":
            return Thinking(_string(part, "thinking", name))
        case kind if kind in _SAYS_NOTHING:
            if kind != "redacted_thinking":
                report(f"messages[].content.{kind}")
            return None
        case "tool_use":
            arguments = part.get("input", {})
            arguments = {} if arguments is None else arguments
            if not isinstance(arguments, dict):
                raise ValueError(f"{name}.input is {shorten(arguments)}; it must be an object")
            if is_deeper(arguments, MAX_DEPTH):
                raise ValueError(f"{name}.input is nested too deeply: deeper than {MAX_DEPTH} levels, the limit")
            return ToolUse(_string(part, "id", name), _string(part, "name", name), arguments)
        case "tool_result":
            is_error = part.get("is_error") or False
            if not isinstance(is_error, bool):
                raise ValueError(f"{name}.is_error is {shorten(is_error)}; it must be true or false")
            content = as_content(_read_result(part.get("content"), f"{name}.content", report))
            return ToolResult(_string(part, "tool_use_id", name), content, is_error)
        case "image":
            return _read_picture(part, name)
        case "tool_addition" | "tool_removal":
            return _read_change(part, name, is_removed=kind == "tool_removal")
        case "compaction":
            summary = part.get("content")
            return Text(f"This is a summary of the conversation before:\n{summary}") if summary else None
        case "server_tool_use" | "mcp_tool_use":
            call = _as_json(part.get("input", {}), f"{name}.input")
            return Text(f"[Called {_string(part, 'name', name)} with {call}]")
        case kind if kind in _PLAIN_TEXT:
            return Text(_read_text(part, name, report))
        case kind if kind.endswith("_tool_result"):
            return Text(f"[Result of {kind.removesuffix('_tool_result')}: {_text_of_result(part.get('content'))}]")
    raise _unsupported(kind, name)


def _read_text(part: Any, name: str, report: Report | None) -> str:
    """The text of a block; with `report`, a note stands for a document that is not text."""
    kind = _kind_of(part, name)
    match kind:
        case "text":
            return _string(part, "text", name)
        case "tool_reference":
            return _string(part, "tool_name", name)
        case "search_result":
            parts = [part.get("title"), part.get("source"), *read_texts(part.get("content"), f"{name}.content", report)]
            return "\n".join(each for each in parts if isinstance(each, str))
        case "document":
            title, source = part.get("title"), part.get("source")
            head = f"{title}\n" if isinstance(title, str) else ""
            if isinstance(source, dict) and source.get("type") == "text":
                return head + _string(source, "data", f"{name}.source")
            if isinstance(source, dict) and source.get("type") == "content":
                return head + "\n".join(read_texts(source.get("content"), f"{name}.source.content", report))
            if report is not None:
                report("messages[].content.document")
                return head + _DOCUMENT
    raise _unsupported(kind, name)


def _read_change(part: dict[str, Any], name: str, *, is_removed: bool) -> ToolChange:
    tool = part.get("tool")
    if not isinstance(tool, dict):
        raise ValueError(f"{name}.tool is {shorten(tool)}; it must be an object")
    named = _string(tool, "tool_name" if "tool_name" in tool else "name", f"{name}.tool")
    return ToolChange(named, tool if not is_removed and "input_schema" in tool else None, is_removed)


def _text_of_result(content: Any) -> str:
    """What the result of a server's tool says: its texts, titles and addresses, or the code of an error."""
    found: list[str] = []
    waiting = [content]
    while waiting and len(found) < MAX_BLOCKS:
        value = waiting.pop()
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, list):
            waiting += reversed(value)
        elif isinstance(value, dict):
            texts = ("title", "url", "text", "stdout", "stderr", "error_code", "tool_name")
            found += [value[key] for key in texts if isinstance(value.get(key), str) and value[key]]
            waiting += [value[key] for key in ("tool_references", "source", "content") if key in value]
    return "\n".join(found)


def _as_json(value: Any, name: str) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as error:
        raise ValueError(f"{name} is nested too deeply") from error


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
