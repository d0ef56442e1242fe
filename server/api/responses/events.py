"""The events of a response's stream, encoded and numbered."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from server.protocol.errors import ApiError

_SSE_EVENT = b"event: %b\ndata: %b\n\n"


class TextDelta(NamedTuple):
    """The constant bytes of the events of one item's text: everything but their number and the text."""

    head: bytes
    place: bytes  # behind the number
    tail: bytes


def error_event(error: ApiError, number: int) -> bytes:
    """The server-sent event that ends a stream which cannot be read on."""
    told = {"type": "error", "sequence_number": number, "code": error.code, "message": error.message}
    return _SSE_EVENT % (b"error", orjson.dumps({**told, "param": error.param}))


class EventEncoder:
    """Numbers the events of one response from 0 and encodes them, if they are wanted."""

    def __init__(self, stream_id: str | None = None, *, is_wanted: bool = True, as_messages: bool = False) -> None:
        """Repeats `stream_id`, a client's name, in every event, which `as_messages` makes one of a WebSocket."""
        self.is_wanted = is_wanted
        self._as_messages = as_messages
        self._tail = {} if stream_id is None else {"stream_id": stream_id}
        self._num_events = 0
        self._events: list[bytes] = []

    def add(self, kind: str, **fields: Any) -> None:
        """Adds an event."""
        if self.is_wanted:
            data = orjson.dumps({"type": kind, "sequence_number": self._num_events, **fields, **self._tail})
            self._events.append(data if self._as_messages else _SSE_EVENT % (kind.encode(), data))
            self._num_events += 1

    def text_delta(self, kind: str, place: Mapping[str, Any], *, with_logprobs: bool = False) -> TextDelta:
        """What `add_text` needs for the events of one item's text, with the fields `place` that name the item."""
        name = kind.encode()
        head = b'{"type":"%b","sequence_number":' % name
        tail = b',"logprobs":[]' if with_logprobs else b""
        if self._tail:
            tail += b"," + orjson.dumps(self._tail)[1:-1]
        behind = b',%b,"delta":' % orjson.dumps(place)[1:-1]
        if self._as_messages:
            return TextDelta(head, behind, tail + b"}")
        return TextDelta(b"event: %b\ndata: %b" % (name, head), behind, tail + b"}\n\n")

    def add_text(self, delta: TextDelta, text: str, logprobs: list[dict[str, Any]] | None = None) -> None:
        """Adds an event that comes with every token: a text, and what stays the same around it."""
        if self.is_wanted:
            head, place, tail = delta
            if logprobs:
                tail = tail.replace(b"[]", orjson.dumps(logprobs), 1)
            self._events.append(b"%b%d%b%b%b" % (head, self._num_events, place, orjson.dumps(text), tail))
            self._num_events += 1

    def replace_last(self, events: list[bytes], kind: str, **fields: Any) -> list[bytes]:
        """The events that `take` has returned, with another one in the place of the last. None of them is sent yet."""
        if not events:
            return events
        self._num_events -= 1
        self.add(kind, **fields)
        return [*events[:-1], *self.take()]

    def take(self) -> list[bytes]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events
