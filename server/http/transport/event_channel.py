"""An HTTP response to which events are written one by one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Self

from aiohttp import hdrs, web

from server.api.framing import SERVER_SENT_EVENTS, Framing
from server.http.transport.frames import chunk
from server.http.transport.outlet import Outlet
from server.http.transport.write_watch import WriteWatch
from server.startup.settings import ServerSettings


class EventChannel:
    """A stream of events to one client; used as `async with`.

    Until it is open, an error may still be answered with a status. Afterwards the client gets pings whenever nothing
    else is written, and one that takes nothing is cut off.
    """

    def __init__(
        self,
        request: web.Request,
        settings: ServerSettings,
        *,
        framing: Framing = SERVER_SENT_EVENTS,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            headers: of the response, besides those of the framing.
        """
        self._request = request
        self._settings = settings
        self._framing = framing
        self._watch: WriteWatch | None = None
        self.response = web.StreamResponse(headers={**framing.headers, **(headers or {})})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """True where a child has told the client of the error, which then goes no further."""
        watch, self._watch = self._watch, None  # they know each other, and would be kept until a garbage collection
        if watch is not None:
            await watch.__aexit__(kind, error, trace)
        return None

    @property
    def is_open(self) -> bool:
        return self._watch is not None

    async def open(self, first: bytes = b"") -> None:
        """Sends the headers and what shows a proxy a living stream before there is an event, and then `first`.

        A channel that is open already only sends `first`.
        """
        if self._watch is not None:
            if first:
                await self._watch.write(first)
            return
        await self.response.prepare(self._request)
        is_chunked = self.response.headers.get(hdrs.TRANSFER_ENCODING) == "chunked"  # not for a client of HTTP/1.0
        watch = WriteWatch(
            self.response.write,
            self._cut,
            ping=self._framing.ping,
            ping_interval=self._settings.ping_interval,
            write_timeout=self._settings.write_timeout,
            outlet=Outlet(self._request.protocol, chunk if is_chunked else b"".join),
        )
        self._watch = await watch.__aenter__()
        await watch.write(self._framing.opening + first)

    async def write(self, data: bytes) -> None:
        """Sends events; the channel is opened if it is not open yet."""
        if self._watch is None:
            await self.open(data)
        else:
            await self._watch.write(data)

    @property
    def outlet(self) -> Outlet:
        """For events that need not wait, once the channel is open. Between two writes, never during one."""
        assert self._watch is not None
        assert self._watch.outlet is not None
        return self._watch.outlet

    async def end(self, last: bytes = b"") -> None:
        """Sends the last events, if there are any; nothing more will be written."""
        if self._watch is not None:
            await self._watch.finish(partial(self.response.write_eof, last))

    def _cut(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()
