"""Who hears the events of a response: a client, or the log that keeps them for clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from server.api.responses.events import Event
from server.generation.output_sequence import Delta
from server.generation.push import Sink
from server.http.streams.keeping_sink import KeepingSink
from server.http.streams.writer_sink import WriterSink
from server.http.transport.event_channel import EventChannel
from server.streams.event_log import EventLog

# Makes events of deltas.
Encode: TypeAlias = Callable[[Sequence[Delta]], Sequence[Event]]


class Audience(Protocol):
    """Takes the events of one response, in their order."""

    async def deliver(self, events: Sequence[Event]) -> None:
        """Takes events; waits where a client is slow."""

    def make_sink(self, encode: Encode) -> Sink[Delta]:
        """What takes the events of deltas without waiting. Something has been delivered before."""


class ChannelAudience:
    """The client of a stream of server-sent events."""

    def __init__(self, channel: EventChannel) -> None:
        self._channel = channel

    async def deliver(self, events: Sequence[Event]) -> None:
        await self._channel.write(b"".join(_frame(events)))

    def make_sink(self, encode: Encode) -> Sink[Delta]:
        return WriterSink(lambda deltas: _frame(encode(deltas)), self._channel.outlet)


class LogAudience:
    """A log that keeps server-sent events."""

    def __init__(self, log: EventLog, append: Callable[[bytes], object]) -> None:
        """
        Args:
            append: adds an event to the log.
        """
        self._log = log
        self._append = append

    async def deliver(self, events: Sequence[Event]) -> None:
        self._keep(events)
        self._log.flush()

    def make_sink(self, encode: Encode) -> Sink[Delta]:
        return KeepingSink(lambda deltas: self._keep(encode(deltas)), self._log)

    def _keep(self, events: Sequence[Event]) -> None:
        for event in _frame(events):
            self._append(event)


def _frame(events: Sequence[Event]) -> list[bytes]:
    return [event.to_sse() for event in events]
