"""The way to one client's socket past all tasks: what is put in during one turn of the loop leaves in one write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

# Called with an error if nothing can be sent any more.
Stop: TypeAlias = Callable[[Exception | None], None]


class HasTransport(Protocol):
    """What is known of a connection; it has no transport any more once it is lost."""

    @property
    def transport(self) -> asyncio.Transport | None: ...


class Outlet:
    """Writes that do not wait.

    They share a transport with writes that wait. Every write, of either kind, ends with a whole chunk or frame, so that
    the two kinds may follow each other in any order.
    """

    __slots__ = ("_clock", "_connection", "_frame", "_is_closed", "_stops", "_waiting", "last_write_at", "put")

    def __init__(
        self,
        connection: HasTransport,
        frame: Callable[[Sequence[bytes]], bytes],
        is_closed: Callable[[], bool] | None = None,
    ) -> None:
        """
        Args:
            frame: makes of all that is put in what stands on the wire.
            is_closed: whether nothing may be sent any more although the connection stands.
        """
        self._connection = connection
        self._frame = frame
        self._is_closed = is_closed
        self._clock = asyncio.get_running_loop().time
        self._waiting: list[bytes] = []
        self._stops: set[Stop] = set()
        self.last_write_at = 0.0  # on the loop's clock
        self.put: Callable[[Sequence[bytes]], None] = self._waiting.extend  # adds to what leaves with the next flush

    @property
    def is_ready(self) -> bool:
        """Whether everything that was written has left: the client keeps up."""
        transport = self._connection.transport
        return transport is not None and transport.get_write_buffer_size() == 0

    def follow(self, stop: Stop) -> None:
        """`stop` is called at the end of a flush after which the outlet is not ready."""
        self._stops.add(stop)

    def leave(self, stop: Stop) -> None:
        """`stop` is not to be called any more. Idempotent."""
        self._stops.discard(stop)

    def flush(self) -> None:
        """Writes what was put in, all of it at once. Whoever follows is told where nothing more should be put in."""
        waiting = self._waiting
        if not waiting:
            return
        transport = self._connection.transport
        if transport is None or transport.is_closing() or (self._is_closed is not None and self._is_closed()):
            waiting.clear()
            for stop in tuple(self._stops):
                stop(ConnectionResetError("the connection is closed"))
            return
        data = self._frame(waiting)
        waiting.clear()
        self.last_write_at = self._clock()
        transport.write(data)
        if transport.get_write_buffer_size():
            for stop in tuple(self._stops):
                stop(None)
