"""Timeouts of the writes to one client: a silent connection gets a keep-alive ping, a stalled one is cut."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self

from server.http.transport.connection_writer import ConnectionWriter


class WriteTimeout:
    """Wraps a connection's write function; used as `async with`.

    One task watches the clock, so that a write costs one reading of the clock and no timer.

    Args:
        write: sends bytes and returns once the client's backlog is short again.
        cut: closes the connection at once, so that a write pending for `write_timeout` seconds fails.
        ping: what to send after `ping_interval` seconds without a write; empty for nothing.
    """

    def __init__(
        self,
        write: Callable[[bytes], Awaitable[None]],
        cut: Callable[[], None],
        *,
        ping: bytes,
        ping_interval: float,
        write_timeout: float,
        writer: ConnectionWriter | None = None,
    ) -> None:
        self._write = write
        self._cut = cut
        self._writer = writer
        self._ping = ping
        self._ping_interval = ping_interval
        self._write_timeout = write_timeout
        self._clock = asyncio.get_running_loop().time
        self._last_write_at = self._clock()  # when the last write began
        self._is_writing = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        task, self._task = self._task, None  # the ended task keeps its frame, and that keeps this object
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def write(self, data: bytes) -> None:
        """Writes `data`. The caller makes one write at a time; a ping may come between two writes, never inside one."""
        self._last_write_at = self._clock()
        self._is_writing = True
        try:
            await self._write(data)
        finally:
            self._is_writing = False

    async def finish(self, write_eof: Callable[[], Awaitable[None]]) -> None:
        """Ends the connection by its last write, which a client may stall like any other."""
        self._last_write_at = self._clock()
        self._is_writing = True
        try:
            await write_eof()
        finally:
            self._is_writing = False

    async def _watch(self) -> None:
        while True:
            now = self._clock()
            if self._is_writing:
                due = self._last_write_at + self._write_timeout
                if due <= now:
                    self._cut()
                    return
            else:
                if self._writer is not None:
                    self._last_write_at = max(self._last_write_at, self._writer.last_write_at)
                due = self._last_write_at + self._ping_interval
                if due <= now:
                    self._last_write_at = now
                    if self._ping and not await self._send_ping():
                        return
                    continue
            # No longer than a quarter of the timeout, so that a write that stalls meanwhile is seen in time.
            await asyncio.sleep(min(due - now, self._write_timeout / 4))

    async def _send_ping(self) -> bool:
        """Whether the connection is still good."""
        try:
            await asyncio.wait_for(self._write(self._ping), self._write_timeout)
        except TimeoutError:
            self._cut()
            return False
        except ConnectionError:
            return False  # the owner's next write meets the same error
        return True
