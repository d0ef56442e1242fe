"""Items as JSON objects, as the API returns and stores them, and the ids of items, responses and conversations.

The id of an item contains that of its response, so that the item can be found by its id alone.
"""

import secrets
from collections.abc import Callable, Sequence
from typing import Any

from server.api.responses.input_items import (
    AdditionalToolsItem,
    CompactionItem,
    InputItem,
    ItemReference,
    MessageItem,
    OtherItem,
    ReasoningItem,
    ToolSearchOutputItem,
    input_text,
    unsealed,
)
from server.media.picture import Content, Picture, as_content

Item = dict[str, Any]


def shape_items(items: Sequence[InputItem], new_id: Callable[[str, int], str]) -> list[Item]:
    """The items of a request as JSON objects; `new_id` makes a missing id of an item's type and place."""
    return [_shape(item, item.id or new_id(item.type, at)) for at, item in enumerate(items)]


def _shape(item: InputItem, item_id: str) -> Item:
    head = {"id": item_id, "type": item.type}
    match item:
        case MessageItem():
            content = item.content
            if isinstance(content, str):
                content = [output_text(content) if item.role == "assistant" else input_text(content)]
            return {**head, "status": "completed", "role": item.role, "content": content}
        case ReasoningItem():
            content = item.content or unsealed(item.encrypted_content) or ""
            summary = [{"type": "summary_text", "text": item.summary}] if item.summary else []
            shaped = {**head, "summary": summary, "content": [reasoning_text(content)] if content else []}
            return shaped if item.encrypted_content is None else {**shaped, "encrypted_content": item.encrypted_content}
        case CompactionItem() | OtherItem():
            return {**head, **item.model_dump(exclude={"id", "type"}, exclude_none=True)}
        case AdditionalToolsItem() | ToolSearchOutputItem():
            fields = item.model_dump(exclude={"id", "type", "status", "tools"}, exclude_none=True)
            return {**head, **fields, "tools": [tool.to_wire() for tool in item.tools]}
        case ItemReference():
            return head
    status = "failed" if item.status == "failed" else "completed"
    return {**head, "status": status, **item.model_dump(exclude={"id", "type", "status"}, exclude_none=True)}


def output_text(text: str, logprobs: Sequence[Item] = ()) -> Item:
    """A text part of an answer's message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def reasoning_text(text: str) -> Item:
    """A part of an answer's reasoning."""
    return {"type": "reasoning_text", "text": text}


def text_of(item: Item) -> str:
    """All text of a message or of reasoning."""
    return "\n".join(part["text"] for part in item["content"] if "text" in part)


WITH_PICTURES = (
    "message", "function_call_output", "custom_tool_call_output", "local_shell_call_output", "apply_patch_call_output",
)  # fmt: skip


def content_of(parts: str | Sequence[Item], path: str) -> Content:
    """The content of a message, or of a call's result, for chat templates.

    Args:
        path: of the parts in the body, which errors name.
    """
    if isinstance(parts, str):
        return parts
    return as_content(
        [
            Picture(f"{path}[{place}]", "input_image", part["image_url"], part.get("detail") or "auto")
            if part["type"] == "input_image"
            else part["text"]
            for place, part in enumerate(parts)
        ]
    )


_TOKEN_BYTES = 16
_TOKEN_LENGTH = 2 * _TOKEN_BYTES  # characters

RESPONSE_PREFIX = "resp_"
CONVERSATION_PREFIX = "conv_"

_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "local_shell_call": "lsh",
    "shell_call": "sh",
    "shell_call_output": "sho",
    "apply_patch_call": "apc",
    "apply_patch_call_output": "apco",
    "compaction": "cmp",
    "mcp_call": "mcp",
    "code_interpreter_call": "ci",
    "additional_tools": "at",
}
_OTHER_PREFIX = "item"


def new_response_id() -> str:
    return f"{RESPONSE_PREFIX}{secrets.token_hex(_TOKEN_BYTES)}"


def new_conversation_id() -> str:
    return f"{CONVERSATION_PREFIX}{secrets.token_hex(_TOKEN_BYTES)}"


def item_id(kind: str, response_id: str, index: int) -> str:
    """The id of an item of a response; `index` counts all its items, those of its input first."""
    return f"{_PREFIXES.get(kind, _OTHER_PREFIX)}_{response_id.removeprefix(RESPONSE_PREFIX)}{index:04x}"


def new_item_id(kind: str) -> str:
    """The id of an item that belongs to no response."""
    return f"{_PREFIXES.get(kind, _OTHER_PREFIX)}_{secrets.token_hex(_TOKEN_BYTES)}"


def response_of_item(known_id: str) -> str:
    """The id of the response that an item belongs to, if there is such a response at all."""
    return RESPONSE_PREFIX + known_id.partition("_")[2][:_TOKEN_LENGTH]
