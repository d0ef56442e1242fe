"""Tools, calls of them, and what they give, as a model sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import orjson

MAX_TEXT = 1 << 18  # characters of a result that the model gets


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    schema: dict[str, Any]


class Result(NamedTuple):
    """What a tool gave, as a text for the model."""

    text: str
    is_error: bool = False


class ToolSource(Protocol):
    """What has tools: an MCP server, or this process."""

    name: str

    async def list_tools(self) -> list[Tool]:
        """All of its tools; raises McpError."""

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Result:
        """Runs a tool; raises McpError. A cancellation stops it."""

    async def close(self) -> None: ...


def tool_of(entry: Any) -> Tool | None:
    """The tool of an entry of MCP's `tools/list`; None where it has no name."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"]:
        return None
    texts = [entry.get(key) for key in ("description", "title")]
    schema = entry.get("inputSchema")
    return Tool(
        entry["name"],
        next((text for text in texts if isinstance(text, str)), ""),
        _untitled(schema) if isinstance(schema, dict) else {"type": "object"},
    )


def result_of(body: dict[str, Any]) -> Result:
    """The result of MCP's `tools/call`."""
    content = body.get("content")
    parts = [_text_of(part) for part in content] if isinstance(content, list) else []
    if not parts and "structuredContent" in body:
        parts = [orjson.dumps(body["structuredContent"]).decode()]
    return Result("\n".join(parts)[:MAX_TEXT], body.get("isError") is True)


def _text_of(part: Any) -> str:
    match part:
        case {"type": "text", "text": str(text)} | {"type": "resource", "resource": {"text": str(text)}}:
            return text
        case {"type": "resource_link", "uri": str(uri)}:
            return uri
        case {"mimeType": str(kind)} | {"type": str(kind)}:
            return f"[{kind} that the model cannot read]"
        case _:
            return "[something that the model cannot read]"


def _untitled(schema: Any) -> Any:
    """A schema without titles: generators write names like "addArguments", which small models take for the tool's."""
    if isinstance(schema, list):
        return [_untitled(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _untitled(value) for key, value in schema.items() if key != "title" or not isinstance(value, str)}
