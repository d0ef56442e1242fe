"""From turns to messages as chat templates know them.

Many templates know a system message at the beginning only, want users and assistants by turns, or have no words for
tools. For them the same conversation is told in plain turns, where all of that is text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import orjson
from pydantic import PlainValidator

from server.wire.messages.blocks import Block, Text, Thinking, ToolResult, ToolUse, read_blocks
from server.wire.messages.tolerant_model import TolerantModel

# Claude Code begins the system with a block that differs in each request. The model needs nothing of it, and no prefix
# could ever be found in the cache behind it.
_CHANGING = "x-anthropic-billing-header"


class Turn(TolerantModel):
    """One turn of a conversation. A system's turn stays where it stands."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[list[Block], PlainValidator(read_blocks)]


def without_changing_blocks(texts: Sequence[str]) -> list[str]:
    """The texts of a system without those that change with each request."""
    kept = []
    for text in texts:
        if text.lstrip().startswith(_CHANGING):
            text = text.lstrip().partition("\n")[2].lstrip("\n")
            if not text:
                continue
        kept.append(text)
    return kept


def to_messages(system: Sequence[str], turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """The conversation with roles of its own for systems and results of tools; turns of one role in a row are one."""
    names = {block.id: block.name for turn in turns for block in turn.content if isinstance(block, ToolUse)}
    messages: list[dict[str, Any]] = [{"role": "system", "content": "\n".join(system)}] if system else []
    for turn in turns:
        for message in _messages_of(turn, names):
            _append(messages, message)
    return messages


def to_plain_messages(system: Sequence[str], turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """The conversation as texts of user and assistant alone, by turns, the user first."""
    messages: list[dict[str, Any]] = []
    if system:
        messages.append({"role": "user", "content": "\n".join(system) + "\n"})
    for turn in turns:
        text = "\n".join(_as_text(block) for block in turn.content if not isinstance(block, Thinking))
        role = "assistant" if turn.role == "assistant" else "user"
        if not messages and role == "assistant":
            messages.append({"role": "user", "content": ""})
        _append(messages, {"role": role, "content": text})
    return messages


def _messages_of(turn: Turn, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    if turn.role == "assistant":
        yield _assistant_message(turn.content)
        return
    texts: list[str] = []
    for block in turn.content:
        if isinstance(block, ToolResult):
            if texts:
                yield {"role": turn.role, "content": "\n".join(texts)}
                texts = []
            message = {"role": "tool", "tool_call_id": block.call_id, "content": _result_text(block)}
            yield message | ({"name": names[block.call_id]} if block.call_id in names else {})
        elif isinstance(block, Text):
            texts.append(block.text)
    if texts or not turn.content:
        yield {"role": turn.role, "content": "\n".join(texts)}


def _assistant_message(blocks: Sequence[Block]) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "\n".join(block.text for block in blocks if isinstance(block, Text)),
    }
    thoughts = [block.text for block in blocks if isinstance(block, Thinking) and block.text]
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    calls = [block for block in blocks if isinstance(block, ToolUse)]
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.input}}
            for call in calls
        ]
    return message


def _append(messages: list[dict[str, Any]], message: dict[str, Any]) -> None:
    """Adds a message, to the last one where both are nothing but text of the same role."""
    last = messages[-1] if messages else {}
    if last.keys() == message.keys() == {"role", "content"} and last["role"] == message["role"]:
        last["content"] = f"{last['content']}\n{message['content']}"
    else:
        messages.append(message)


def _result_text(result: ToolResult) -> str:
    return f"Error: {result.text}" if result.is_error else result.text


def _as_text(block: Block) -> str:
    match block:
        case ToolUse():
            call = orjson.dumps({"name": block.name, "arguments": block.input}).decode()
            return f"<tool_call>\n{call}\n</tool_call>"
        case ToolResult():
            return f"<tool_response>\n{_result_text(block)}\n</tool_response>"
    return block.text
