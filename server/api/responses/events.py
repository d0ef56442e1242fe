"""The events of a response's stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from server.protocol.errors import ApiError


class Event(NamedTuple):
    """One event, encoded."""

    kind: str
    data: bytes  # a JSON object without line breaks

    def to_sse(self) -> bytes:
        """The event as a server-sent event."""
        return b"event: %b\ndata: %b\n\n" % (self.kind.encode(), self.data)


def error_event(error: ApiError, number: int) -> Event:
    """What ends a stream of events that cannot be read on."""
    told = {"type": "error", "sequence_number": number, "code": error.code, "message": error.message}
    return Event("error", orjson.dumps({**told, "param": error.param}))


def encode_fields(fields: Mapping[str, Any]) -> bytes:
    """At least one field as it stands within an object, without the braces."""
    return orjson.dumps(fields)[1:-1]


class EventEncoder:
    """Numbers the events of one response from 0 and encodes them, if anybody listens."""

    def __init__(self, stream_id: str | None = None, *, is_heard: bool = True) -> None:
        """Args:
        stream_id: a name of the client's for the stream, which every event repeats.
        is_heard: whether events are made at all.
        """
        self._is_heard = is_heard
        self._tail = {} if stream_id is None else {"stream_id": stream_id}
        self._encoded_tail = b"" if stream_id is None else b',"stream_id":' + orjson.dumps(stream_id)
        self._num_events = 0
        self._events: list[Event] = []

    def add(self, kind: str, **fields: Any) -> None:
        """Notes an event."""
        if self._is_heard:
            event = {"type": kind, "sequence_number": self._num_events, **fields, **self._tail}
            self._events.append(Event(kind, orjson.dumps(event)))
            self._num_events += 1

    def add_delta(self, kind: str, place: bytes, text: str, more: bytes = b"") -> None:
        """`add` for what comes with every token: a text, and what stays the same around it.

        Args:
            place: fields, as `encode_fields` gives them.
            more: fields behind the text, with a comma before them.
        """
        if self._is_heard:
            data = b'{"type":"%b","sequence_number":%d,%b,"delta":%b%b%b}' % (
                kind.encode(), self._num_events, place, orjson.dumps(text), more, self._encoded_tail,
            )  # fmt: skip
            self._events.append(Event(kind, data))
            self._num_events += 1

    def take(self) -> list[Event]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events
