"""Where the deltas of an answer go that is kept for its readers: there is always room for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from server.answering.choice import Delta


class KeepingSink:
    """A sink of one generation's deltas; see `server.answering.push.Sink`."""

    is_ready = True
    outbox = None

    def __init__(self, take: Callable[[Sequence[Delta]], None]) -> None:
        """
        Args:
            take: keeps what the deltas tell, at once.
        """
        self.take = take

    def follow(self, stop: Callable[[Exception | None], None]) -> None:
        """There is nothing to stop for."""

    def leave(self, stop: Callable[[Exception | None], None]) -> None:
        """There was nothing to stop for."""
