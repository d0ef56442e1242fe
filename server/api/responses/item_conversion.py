"""Converts items into the messages that chat templates expect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from server.api.responses.items import Item, text_of
from server.protocol.tools import FunctionCall, ToolCall

Message = dict[str, Any]


def to_messages(items: Iterable[Item], instructions: str | None = None) -> list[Message]:
    """The conversation of the items.

    Reasoning belongs to the answer behind it, and calls belong to the answer before them. Instructions and the system
    messages at the beginning become one message, because many templates allow only one.
    """
    messages: list[Message] = []
    beginning = [instructions] if instructions else []  # joined at the end: one by one, each would copy all before it
    reasoning: str | None = None
    names: dict[str, str] = {}  # of the functions, by the ids of their calls
    for item in items:
        kind = item["type"]
        if kind == "reasoning":
            reasoning = text_of(item) or "\n".join(part["text"] for part in item["summary"]) or None
            continue
        if kind == "function_call":
            names[item["call_id"]] = item["name"]
            _add_call(messages, item, reasoning)
        elif kind == "function_call_output":
            _add_output(messages, item, names.get(item["call_id"]))
        elif not messages and _role_of(item) == "system":
            beginning.append(text_of(item))
        else:
            _add_message(messages, item, reasoning)
        reasoning = None
    return [{"role": "system", "content": "\n\n".join(beginning)}, *messages] if beginning else messages


def _role_of(item: Item) -> str:
    return "system" if item["role"] == "developer" else str(item["role"])


def _add_message(messages: list[Message], item: Item, reasoning: str | None) -> None:
    message: Message = {"role": _role_of(item), "content": text_of(item)}
    if message["role"] == "assistant" and reasoning is not None:
        message["reasoning_content"] = reasoning
    messages.append(message)


def _add_call(messages: list[Message], item: Item, reasoning: str | None) -> None:
    function = FunctionCall(name=item["name"], arguments=item["arguments"])
    call = ToolCall(id=item["call_id"], function=function).to_template()
    last = messages[-1] if messages else None
    if last is None or last["role"] != "assistant" or reasoning is not None:
        last = {"role": "assistant", "content": ""}
        if reasoning is not None:
            last["reasoning_content"] = reasoning
        messages.append(last)
    last.setdefault("tool_calls", []).append(call)


def _add_output(messages: list[Message], item: Item, name: str | None) -> None:
    message: Message = {"role": "tool", "content": item["output"], "tool_call_id": item["call_id"]}
    if name is not None:
        message["name"] = name
    messages.append(message)
