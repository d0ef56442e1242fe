"""The items of an answer while they come: messages, reasoning, calls, and the events that tell of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from server.api.responses.events import EventEncoder
from server.api.responses.items import Item, output_text, reasoning_text
from server.output_parsers.parser_events import (
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
}


class _OpenItem:
    """The item that grows at the moment. Its text is joined once, at its end."""

    def __init__(self, item: Item, index: int, events: EventEncoder) -> None:
        self.item = item
        self.kind: str = item["type"]
        self.place: dict[str, Any] = {"item_id": item["id"], "output_index": index}
        if self.kind != "function_call":
            self.place["content_index"] = 0
        self.delta = events.text_delta(_TEXT_KINDS[self.kind], self.place, with_logprobs=self.kind == "message")
        self.texts: list[str] = []
        self.logprobs: list[Item] = []


class OutputItems:
    """Parts of an answer go in; items come out, with their events."""

    def __init__(self, events: EventEncoder, new_id: Callable[[str, int], str]) -> None:
        """Args:
        new_id: makes an item's id from its type and its place in the output.
        """
        self.items: list[Item] = []  # in their order; the open one lacks its text
        self._events = events
        self._new_id = new_id
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
                    self._open.texts.append(text)
                    self._events.add_text(self._open.delta, text)

    def finish(self, *, is_whole: bool) -> None:
        """No more can come. An answer without anything has a message without text.

        Args:
            is_whole: whether the answer has ended by itself; else its last item is incomplete.
        """
        if self._space or not self.items:
            if not any(item["type"] == "function_call" for item in self.items):
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
        self._events.add_text(opened.delta, text)

    def _start_call(self, name: str) -> None:
        self._space, self._logprobs = "", []
        call_id = f"call_{uuid.uuid4().hex[:24]}"
        self._begin({"type": "function_call", "call_id": call_id, "name": name, "arguments": ""})

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
                self._events.add("response.reasoning_text.done", **opened.place, text=text)
                self._events.add("response.content_part.done", **opened.place, part=item["content"][0])
            case "function_call":
                item["arguments"] = text
                name = item["name"]
                self._events.add("response.function_call_arguments.done", **opened.place, name=name, arguments=text)
        item["status"] = status
        self._events.add("response.output_item.done", output_index=opened.place["output_index"], item=item)


def _as_told(logprobs: Sequence[Item]) -> list[Item]:
    """Log probabilities as events of a text have them: without the bytes that the item at the end has."""
    return [
        {"token": token["token"], "logprob": token["logprob"], "top_logprobs": _without_bytes(token["top_logprobs"])}
        for token in logprobs
    ]


def _without_bytes(entries: Sequence[Item]) -> list[Item]:
    return [{"token": entry["token"], "logprob": entry["logprob"]} for entry in entries]
