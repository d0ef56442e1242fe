"""An HTTP response to which events are written one by one."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from aiohttp import web

from server.routes.framing import SERVER_SENT_EVENTS
from server.startup.settings import ServerSettings
from server.transport.write_watch import WriteWatch


class EventChannel:
    """Server-sent events to one client; used as `async with`.

    Until it is open, an error may still be answered with a status. Afterwards the client gets pings whenever nothing
    else is written, and one that takes nothing is cut off.
    """

    def __init__(self, request: web.Request, settings: ServerSettings) -> None:
        self._request = request
        self._settings = settings
        self._watch: WriteWatch | None = None
        self.response = web.StreamResponse(headers=SERVER_SENT_EVENTS.headers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        watch, self._watch = self._watch, None  # they know each other, and would be kept until a garbage collection
        if watch is not None:
            await watch.__aexit__(kind, error, trace)

    @property
    def is_open(self) -> bool:
        return self._watch is not None

    async def open(self) -> None:
        """Sends the headers and a ping, so that a proxy sees a living stream before there is an event. Idempotent."""
        if self._watch is not None:
            return
        await self.response.prepare(self._request)
        watch = WriteWatch(
            self.response.write,
            self._cut,
            ping=SERVER_SENT_EVENTS.ping,
            ping_interval=self._settings.ping_interval,
            write_timeout=self._settings.write_timeout,
        )
        self._watch = await watch.__aenter__()
        await watch.write(SERVER_SENT_EVENTS.ping)

    async def write(self, data: bytes) -> None:
        """Sends events; the channel is opened if it is not open yet."""
        await self.open()
        assert self._watch is not None
        await self._watch.write(data)

    async def end(self) -> None:
        """Nothing more will be written."""
        if self._watch is not None:
            await self._watch.finish(self.response.write_eof)

    def _cut(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()
