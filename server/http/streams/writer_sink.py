"""Where what a client is sent leaves at once: encoded, through the client's outlet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from server.http.transport.outlet import Outlet

Piece = TypeVar("Piece")


class WriterSink(Generic[Piece]):
    """A sink of one generation's deltas, or of the kept events of a stream; see `server.generation.push.Sink`."""

    __slots__ = ("_encode", "_is_taken", "_put", "follow", "leave", "outbox")

    def __init__(
        self,
        encode: Callable[[Sequence[Piece]], Sequence[bytes]],
        outlet: Outlet,
        is_taken: Callable[[], bool] | None = None,
    ) -> None:
        """
        Args:
            encode: makes of the pieces what the outlet frames.
            is_taken: whether somebody else waits to write to the same client, whom nobody may overtake for ever.
        """
        self._encode = encode
        self._is_taken = is_taken
        self._put = outlet.put
        self.outbox = outlet
        self.follow = outlet.follow
        self.leave = outlet.leave

    @property
    def is_ready(self) -> bool:
        """Whether the client keeps up and nobody waits for it."""
        return self.outbox.is_ready and (self._is_taken is None or not self._is_taken())

    def take(self, pieces: Sequence[Piece]) -> None:
        """Encodes the pieces, for the outlet's next flush."""
        self._put(self._encode(pieces))
