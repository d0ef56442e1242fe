"""The items of an answer while they come: messages, reasoning, calls, and the events that tell of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from server.api.responses.events import EventEncoder, TextDelta
from server.api.responses.input_items import sealed
from server.api.responses.items import Item, output_text, reasoning_text
from server.api.responses.offered_tools import OfferedTools
from server.output_parsers.custom_input import CustomInputReader
from server.output_parsers.reading.json_repair import is_whole_object
from server.output_parsers.reading.parser_events import (
    ContentDelta,
    ParserEvent,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)

_TEXT_KINDS = {
    "message": "response.output_text.delta",
    "reasoning": "response.reasoning_text.delta",
    "function_call": "response.function_call_arguments.delta",
    "custom_tool_call": "response.custom_tool_call_input.delta",
}
_WITH_PARTS = ("message", "reasoning")


class _OpenItem:
    """The item that grows at the moment. Its text is joined once, at its end."""

    def __init__(self, item: Item, index: int, events: EventEncoder) -> None:
        self.item = item
        self.kind: str = item["type"]
        self.place: dict[str, Any] = {"item_id": item["id"], "output_index": index}
        if self.kind in _WITH_PARTS:
            self.place["content_index"] = 0
        self.delta: TextDelta | None = None  # of calls that are told at their end alone
        if self.kind in _TEXT_KINDS:
            self.delta = events.text_delta(_TEXT_KINDS[self.kind], self.place, with_logprobs=self.kind == "message")
        self.input = CustomInputReader() if self.kind == "custom_tool_call" else None
        self.texts: list[str] = []
        self.logprobs: list[Item] = []


class OutputItems:
    """Parts of an answer go in; items come out, with their events."""

    def __init__(
        self, events: EventEncoder, new_id: Callable[[str, int], str], *, seals_reasoning: bool = False
    ) -> None:
        """Args:
        new_id: makes an item's id from its type and its place in the output.
        seals_reasoning: whether reasoning has an `encrypted_content`, which clients without a store send back.
        """
        self.items: list[Item] = []  # in their order; the open one lacks its text
        self.tools = OfferedTools(())  # those that may be called
        self._events = events
        self._new_id = new_id
        self._seals_reasoning = seals_reasoning
        self._open: _OpenItem | None = None
        self._space = ""  # white space that may yet turn out to stand before a call, where it means nothing
        self._logprobs: list[Item] = []  # of tokens whose text was not told yet

    def feed(self, parts: Sequence[ParserEvent], logprobs: Sequence[Item] = ()) -> None:
        """Takes more of the answer.

        Args:
            logprobs: of the tokens that the parts come from, as far as they have any.
        """
        self._logprobs += logprobs
        for part in parts:
            match part:
                case ContentDelta(text):
                    self.add_content(text)
                case ReasoningDelta(text):
                    self._add_reasoning(text)
                case ToolCallStart(name):
                    self._start_call(name)
                case ToolCallArguments(text) if self._open is not None:
                    self._add_arguments(self._open, text)

    def finish(self, *, is_whole: bool) -> None:
        """No more can come. An answer without anything has a message without text.

        Args:
            is_whole: whether the answer has ended by itself; else its last item is incomplete.
        """
        if self._space or not self.items:
            if not any(item["type"].endswith("_call") for item in self.items):
                self._tell_content(self._space)
            self._space = ""
        if self._open is not None and self._logprobs:  # of the token that has ended the answer
            self._open.logprobs += self._logprobs
        self._close("completed" if is_whole else "incomplete")

    def add_content(self, text: str) -> None:
        """Takes more of the answer: text that is neither reasoning nor a call."""
        opened = self._open
        if opened is not None and opened.kind == "message" and text and not self._logprobs:  # nearly every piece
            opened.texts.append(text)
            assert opened.delta is not None
            self._events.add_text(opened.delta, text)
            return
        if opened is None or opened.kind != "message":
            text = self._space + text
            self._space = ""
            if text.isspace():
                self._space = text
                return
        self._tell_content(text)

    def _tell_content(self, text: str) -> None:
        opened = self._open
        if opened is None or opened.kind != "message":
            opened = self._begin({"type": "message", "role": "assistant", "content": []})
            self._events.add("response.content_part.added", **opened.place, part=output_text(""))
        opened.texts.append(text)
        assert opened.delta is not None
        told = self._logprobs
        if told:
            self._logprobs = []
            opened.logprobs += told
            self._events.add_text(opened.delta, text, _as_told(told))
        elif text:
            self._events.add_text(opened.delta, text)

    def _add_reasoning(self, text: str) -> None:
        opened = self._open
        if opened is None or opened.kind != "reasoning":
            opened = self._begin({"type": "reasoning", "summary": [], "content": []})
            self._events.add("response.content_part.added", **opened.place, part=reasoning_text(""))
        self._logprobs = []  # those of messages alone are told
        opened.texts.append(text)
        assert opened.delta is not None
        self._events.add_text(opened.delta, text)

    def _start_call(self, name: str) -> None:
        self._space, self._logprobs = "", []
        head = {"call_id": f"call_{uuid.uuid4().hex[:24]}"}
        tool = self.tools.tool_of(name)
        kind = "function" if tool is None else tool.kind
        if tool is not None and tool.kind in ("function", "custom"):
            name = tool.name
        space = {} if tool is None or tool.namespace is None else {"namespace": tool.namespace}
        match kind:
            case "function":
                self._begin({"type": "function_call", **head, "name": name, **space, "arguments": ""})
            case "custom":
                self._begin({"type": "custom_tool_call", **head, "name": name, **space, "input": ""})
            case "local_shell":
                self._begin({"type": "local_shell_call", **head, "action": _local_shell_action({})})
            case "shell":
                self._begin({"type": "shell_call", **head, "action": _shell_action({})})
            case "apply_patch":
                self._begin({"type": "apply_patch_call", **head, "operation": _patch_operation({})})

    def _add_arguments(self, opened: _OpenItem, text: str) -> None:
        if opened.input is not None:
            text = opened.input.feed(text)
        if text:
            opened.texts.append(text)
            if opened.delta is not None:
                self._events.add_text(opened.delta, text)

    def _begin(self, item: Item) -> _OpenItem:
        self._close("completed")
        index = len(self.items)
        item = {"id": self._new_id(item["type"], index), "status": "in_progress", **item}
        self.items.append(item)
        self._open = _OpenItem(item, index, self._events)
        self._events.add("response.output_item.added", output_index=index, item=item)
        return self._open

    def _close(self, status: str) -> None:
        opened, self._open = self._open, None
        if opened is None:
            return
        if opened.input is not None:
            rest = opened.input.finish()
            if rest and opened.delta is not None:
                opened.texts.append(rest)
                self._events.add_text(opened.delta, rest)
        item, text = opened.item, "".join(opened.texts)
        match opened.kind:
            case "message":
                part = output_text(text, opened.logprobs)
                item["content"] = [part]
                told = _as_told(opened.logprobs)
                self._events.add("response.output_text.done", **opened.place, text=text, logprobs=told)
                self._events.add("response.content_part.done", **opened.place, part=part)
            case "reasoning":
                item["content"] = [reasoning_text(text)]
                if self._seals_reasoning:
                    item["encrypted_content"] = sealed(text)
                self._events.add("response.reasoning_text.done", **opened.place, text=text)
                self._events.add("response.content_part.done", **opened.place, part=item["content"][0])
            case "function_call":
                item["arguments"] = text
                name = item["name"]
                self._events.add("response.function_call_arguments.done", **opened.place, name=name, arguments=text)
                status = status if is_whole_object(text) else "incomplete"
            case "custom_tool_call":
                item["input"] = text
                self._events.add("response.custom_tool_call_input.done", **opened.place, input=text)
            case "local_shell_call":
                item["action"] = _local_shell_action(_read(text))
            case "shell_call":
                item["action"] = _shell_action(_read(text))
            case "apply_patch_call":
                item["operation"] = _patch_operation(_read(text))
        item["status"] = status
        self._events.add("response.output_item.done", output_index=opened.place["output_index"], item=item)


def _read(text: str) -> dict[str, Any]:
    """The arguments of a call; none where they were cut off."""
    try:
        read = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return {}
    return read if isinstance(read, dict) else {}


def _texts(value: Any) -> list[str]:
    return [part for part in value if isinstance(part, str)] if isinstance(value, list) else []


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _local_shell_action(arguments: dict[str, Any]) -> dict[str, Any]:
    command = arguments.get("command")
    folder = arguments.get("working_directory")
    return {
        "type": "exec",
        "command": ["bash", "-lc", command] if isinstance(command, str) else _texts(command),
        "env": {},
        "timeout_ms": _number(arguments.get("timeout_ms")),
        "user": None,
        "working_directory": folder if isinstance(folder, str) else None,
    }


def _shell_action(arguments: dict[str, Any]) -> dict[str, Any]:
    commands = arguments.get("commands")
    return {
        "commands": [commands] if isinstance(commands, str) else _texts(commands),
        "timeout_ms": _number(arguments.get("timeout_ms")),
        "max_output_length": _number(arguments.get("max_output_length")),
    }


def _patch_operation(arguments: dict[str, Any]) -> dict[str, Any]:
    kind, path, diff = (arguments.get(name) for name in ("type", "path", "diff"))
    operation = {
        "type": kind if isinstance(kind, str) else "update_file",
        "path": path if isinstance(path, str) else "",
    }
    return operation if kind == "delete_file" else {**operation, "diff": diff if isinstance(diff, str) else ""}


def _as_told(logprobs: Sequence[Item]) -> list[Item]:
    """Log probabilities as events of a text have them: without the bytes that the item at the end has."""
    return [
        {"token": token["token"], "logprob": token["logprob"], "top_logprobs": _without_bytes(token["top_logprobs"])}
        for token in logprobs
    ]


def _without_bytes(entries: Sequence[Item]) -> list[Item]:
    return [{"token": entry["token"], "logprob": entry["logprob"]} for entry in entries]
