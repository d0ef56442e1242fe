"""Items as JSON objects, as the API returns and stores them, and the ids of items, responses and conversations.

The id of an item contains that of its response, so that the item can be found by its id alone.
"""

import secrets
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
    """The items of a request as JSON objects; `new_id` makes a missing id of an item's type and place."""
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
    """A text part of an answer's message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def reasoning_text(text: str) -> Item:
    """A part of an answer's reasoning."""
    return {"type": "reasoning_text", "text": text}


def text_of(item: Item) -> str:
    """All text of a message or of reasoning."""
    return "\n".join(part["text"] for part in item["content"])


_TOKEN_BYTES = 16
_TOKEN_LENGTH = 2 * _TOKEN_BYTES  # characters

RESPONSE_PREFIX = "resp_"
CONVERSATION_PREFIX = "conv_"

_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def new_response_id() -> str:
    return f"{RESPONSE_PREFIX}{secrets.token_hex(_TOKEN_BYTES)}"


def new_conversation_id() -> str:
    return f"{CONVERSATION_PREFIX}{secrets.token_hex(_TOKEN_BYTES)}"


def item_id(kind: str, response_id: str, index: int) -> str:
    """The id of an item of a response; `index` counts all its items, those of its input first."""
    return f"{_PREFIXES[kind]}_{response_id.removeprefix(RESPONSE_PREFIX)}{index:04x}"


def new_item_id(kind: str) -> str:
    """The id of an item that belongs to no response."""
    return f"{_PREFIXES[kind]}_{secrets.token_hex(_TOKEN_BYTES)}"


def response_of_item(known_id: str) -> str:
    """The id of the response that an item belongs to, if there is such a response at all."""
    return RESPONSE_PREFIX + known_id.partition("_")[2][:_TOKEN_LENGTH]
