"""Items as the API shows them, and as they are kept: JSON objects, each with an id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from server.api.responses.input_items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputItem,
    ItemReference,
    MessageItem,
    ReasoningItem,
)

Item = dict[str, Any]


def shape_items(items: Sequence[InputItem], new_id: Callable[[str, int], str]) -> list[Item]:
    """What a client has sent, item by item; a reference stays one.

    Args:
        new_id: makes the id of an item that has none, from its type and its place in the list.
    """
    return [_shape(item, item.id or new_id(item.type, at)) for at, item in enumerate(items)]


def _shape(item: InputItem, item_id: str) -> Item:
    head = {"id": item_id, "type": item.type}
    match item:
        case MessageItem():
            part = output_text(item.content) if item.role == "assistant" else _input_text(item.content)
            return {**head, "status": "completed", "role": item.role, "content": [part]}
        case FunctionCallItem():
            call = {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
            return {**head, "status": "completed", **call}
        case FunctionCallOutputItem():
            return {**head, "status": "completed", "call_id": item.call_id, "output": item.output}
        case ReasoningItem():
            summary = [{"type": "summary_text", "text": item.summary}] if item.summary else []
            content = [reasoning_text(item.content)] if item.content else []
            return {**head, "summary": summary, "content": content}
        case ItemReference():
            return head


def _input_text(text: str) -> Item:
    return {"type": "input_text", "text": text}


def output_text(text: str, logprobs: Sequence[Item] = ()) -> Item:
    """A part of an answer's message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def reasoning_text(text: str) -> Item:
    """A part of an answer's reasoning."""
    return {"type": "reasoning_text", "text": text}


def text_of(item: Item) -> str:
    """All text of a message or of reasoning."""
    return "\n".join(part["text"] for part in item["content"])
