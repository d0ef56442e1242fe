"""Where the deltas of an answer go that is kept for its readers: there is always room for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from server.generation.output_sequence import Delta
from server.streams.event_log import EventLog


class KeepingSink:
    """A sink of one generation's deltas; see `server.generation.push.Sink`."""

    is_ready = True

    def __init__(self, take: Callable[[Sequence[Delta]], None], log: EventLog) -> None:
        """
        Args:
            take: keeps what the deltas tell in the log, at once.
        """
        self.take = take
        self.outbox = log

    def follow(self, stop: Callable[[Exception | None], None]) -> None:
        """There is nothing to stop for."""

    def leave(self, stop: Callable[[Exception | None], None]) -> None:
        """There was nothing to stop for."""
