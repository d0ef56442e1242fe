"""Converts Anthropic's messages into the messages that chat templates expect.

Many templates allow a system message at the beginning only, require alternating users and assistants, or do not
support tools. For them there is a plain form of the same conversation, in which all of that is text.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

import orjson
from pydantic import PlainValidator, ValidationInfo

from server.api.anthropic.content_blocks import (
    Block,
    Text,
    Thinking,
    ToolChange,
    ToolResult,
    ToolUse,
    read_blocks,
)
from server.media.picture import Content, Picture, as_content, join_contents, within
from server.protocol.base_models import LenientModel, UnknownFields

# Claude Code begins the system with a block that differs in each request. The model needs nothing of it, and no prefix
# could ever be found in the cache behind it.
_CHANGING = "x-anthropic-billing-header"


def _as_blocks(value: Any, info: ValidationInfo) -> list[Block]:
    return read_blocks(value, info.context.add if isinstance(info.context, UnknownFields) else lambda _: None)


class InputMessage(LenientModel):
    """One message of a request. A system message keeps its place."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[list[Block], PlainValidator(_as_blocks)]

    def at(self, path: str) -> "InputMessage":
        """The same message, with pictures that know the path of the message in the body."""
        return self.model_copy(update={"content": [_within(block, path) for block in self.content]})


def _within(block: Block, path: str) -> Block:
    match block:
        case Picture():
            return block.within(path)
        case ToolResult():
            return block._replace(content=within(block.content, path))
    return block


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


def to_messages(system: Sequence[str], turns: Sequence[InputMessage]) -> list[dict[str, Any]]:
    """The conversation with roles of its own for systems and tool results; messages of one role in a row are joined."""
    return _joined(_own_messages(system, turns))


def to_plain_messages(system: Sequence[str], turns: Sequence[InputMessage]) -> list[dict[str, Any]]:
    """The conversation as alternating texts of user and assistant, the user first."""
    return _joined(_plain_messages(system, turns))


def _own_messages(system: Sequence[str], turns: Sequence[InputMessage]) -> Iterator[dict[str, Any]]:
    names = {block.id: block.name for turn in turns for block in turn.content if isinstance(block, ToolUse)}
    if system:
        yield {"role": "system", "content": "\n".join(system)}
    for turn in turns:
        yield from _messages_of(turn, names)


def _plain_messages(system: Sequence[str], turns: Sequence[InputMessage]) -> Iterator[dict[str, Any]]:
    if system:
        yield {"role": "user", "content": "\n".join(system) + "\n"}
    elif turns and turns[0].role == "assistant":
        yield {"role": "user", "content": ""}
    for turn in turns:
        content = join_contents(
            _plain_content(block) for block in turn.content if not isinstance(block, Thinking | ToolChange)
        )
        yield {"role": "assistant" if turn.role == "assistant" else "user", "content": content}


def _messages_of(turn: InputMessage, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    if turn.role == "assistant":
        yield _assistant_message(turn.content)
        return
    parts: list[str | Picture] = []
    for block in turn.content:
        if isinstance(block, ToolResult):
            if parts:
                yield {"role": turn.role, "content": as_content(parts)}
                parts = []
            message = {"role": "tool", "tool_call_id": block.call_id, "content": _result_content(block)}
            yield message | ({"name": names[block.call_id]} if block.call_id in names else {})
        elif isinstance(block, Text):
            parts.append(block.text)
        elif isinstance(block, Picture):
            parts.append(block)
    if parts or not turn.content:
        yield {"role": turn.role, "content": as_content(parts)}


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


def _joined(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Joins messages in a row that are nothing but text of one role, all in one go."""
    joined: list[dict[str, Any]] = []
    for role, row in groupby(messages, _role_of_text):
        if role is None:
            joined += row
        else:
            joined.append({"role": role, "content": join_contents(message["content"] for message in row)})
    return joined


def _role_of_text(message: Mapping[str, Any]) -> str | None:
    """The role of a message that is nothing but text; None of any other."""
    return message["role"] if message.keys() == {"role", "content"} else None


def _result_content(result: ToolResult) -> Content:
    return join_contents(["Error: ", result.content], "") if result.is_error else result.content


def _plain_content(block: Text | Picture | ToolUse | ToolResult) -> Content:
    match block:
        case Picture():
            return as_content([block])
        case ToolUse():
            call = orjson.dumps({"name": block.name, "arguments": block.input}).decode()
            return f"<tool_call>\n{call}\n</tool_call>"
        case ToolResult():
            return join_contents(["<tool_response>", _result_content(block), "</tool_response>"])
    return block.text
