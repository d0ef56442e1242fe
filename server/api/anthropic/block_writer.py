"""Writes the content blocks of one answer as events of a stream."""

import json
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from server.api.anthropic.message_objects import encode_event
from server.output_parsers.reading.parser_events import (
    ContentDelta,
    ParserEvent,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)

SIGNATURE = "eagre"  # clients send it back with a thinking block; it is not checked


# What comes with nearly every token: an event around the index of its block and its text.
_TEXT_DELTA = (
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":%b}}\n\n'
)


class BlockWriter:
    """Turns parser events into blocks. White space that would be a block of its own is dropped.

    A call that is cut off is never told as finished: its block is not among the `whole`, and has no end in the stream.

    Reasoning becomes blocks `with_thinking`; they have its text if `shows_thinking`.
    """

    def __init__(self, *, with_thinking: bool, shows_thinking: bool) -> None:
        self.whole: list[dict[str, Any]] = []  # the blocks so far
        self._with_thinking = with_thinking
        self._shows_thinking = shows_thinking
        self._texts: list[str] = []  # of the last block, while it is open
        self._space = ""  # what may become the beginning of a block
        self._is_open = False
        self._num_dropped = 0

    def feed(self, parts: Sequence[ParserEvent]) -> Iterator[bytes]:
        """The stream's events for `parts`."""
        for part in parts:
            match part:
                case ContentDelta(text):
                    yield from self.add_text(text)
                case ReasoningDelta(text):
                    yield from self._thinking(text)
                case ToolCallStart(name):
                    yield from self.close()
                    block = {"type": "tool_use", "id": new_call_id(), "name": name, "input": {}}
                    yield self._open(block)
                case ToolCallArguments(text):
                    yield self._delta(text, type="input_json_delta", partial_json=text)

    def close(self) -> Iterator[bytes]:
        """The events that end the open block, if there is one."""
        self._space = ""
        if not self._is_open:
            return
        block, text = self.whole[-1], "".join(self._texts)
        self._texts.clear()
        match block["type"]:
            case "tool_use":
                call_input = _read_input(text)
                if call_input is None:
                    self._drop_block()
                    return
                block["input"] = call_input
            case "thinking":
                block |= {"thinking": text, "signature": SIGNATURE}
                yield self._event("content_block_delta", delta={"type": "signature_delta", "signature": SIGNATURE})
            case _:
                block["text"] = text
        yield self._event("content_block_stop")
        self._is_open = False

    def add_text(self, text: str) -> list[bytes]:
        """The events of a piece of text that is neither reasoning nor a call."""
        events: list[bytes] = []
        if not self._is_open or self.whole[-1]["type"] != "text":
            text = self._space + text
            if not text.strip():
                self._space = text
                return events
            events += self.close()
            events.append(self._open({"type": "text", "text": ""}))
        self._texts.append(text)
        events.append(_TEXT_DELTA % (self._index, orjson.dumps(text)))
        return events

    def _thinking(self, text: str) -> Iterator[bytes]:
        if not self._with_thinking:
            return
        if not self._is_open or self.whole[-1]["type"] != "thinking":
            yield from self.close()
            yield self._open({"type": "thinking", "thinking": "", "signature": ""})
        if self._shows_thinking:
            yield self._delta(text, type="thinking_delta", thinking=text)

    def _drop_block(self) -> None:
        self._is_open = False
        self._num_dropped += 1
        self.whole.pop()

    def _open(self, block: dict[str, Any]) -> bytes:
        self._is_open = True
        self.whole.append(block)
        return self._event("content_block_start", content_block=block)

    def _delta(self, piece: str, /, **delta: str) -> bytes:
        self._texts.append(piece)
        return self._event("content_block_delta", delta=delta)

    def _event(self, kind: str, **fields: Any) -> bytes:
        return encode_event(kind, index=self._index, **fields)

    @property
    def _index(self) -> int:
        """The place of the last block in the stream."""
        return self._num_dropped + len(self.whole) - 1


def _read_input(text: str) -> dict[str, Any] | orjson.Fragment | None:
    """A call's input; None where it was cut off."""
    try:
        read = json.loads(text)
        if not isinstance(read, dict):
            return None
        orjson.dumps(read)
    except ValueError:
        return None
    except TypeError:  # an integer beyond 64 bits
        return orjson.Fragment(text)
    return read


def new_call_id() -> str:
    """An id by which the tool's result will name the call."""
    return f"toolu_{uuid.uuid4().hex[:24]}"
