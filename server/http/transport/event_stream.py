"""An HTTP response of server-sent events."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from aiohttp import hdrs, web

from server.api.framing import SERVER_SENT_EVENTS, Framing
from server.http.transport.connection_writer import ConnectionWriter, DeltaSink, LogFollower, chunk
from server.http.transport.write_timeout import WriteTimeout
from server.protocol.errors import ApiError
from server.startup.logs import failure_of
from server.startup.settings import ServerSettings
from server.streams.stream import Encode, Stream


class EventStreamResponse(Stream):
    """A stream of events to one client, used as `async with`.

    Until it is open, an error may still be answered with a status. Afterwards the client gets pings, is cut off if it
    takes nothing, and an error becomes the last event.
    """

    def __init__(
        self,
        request: web.Request,
        settings: ServerSettings,
        *,
        framing: Framing = SERVER_SENT_EVENTS,
        headers: Mapping[str, str] | None = None,
        encode_error: Callable[[ApiError], bytes | None] | None = None,
    ) -> None:
        """`encode_error` makes the last event of an error, or breaks off with None; without it errors are raised.

        Where the response has begun, an error that is raised breaks it off.
        """
        self._request = request
        self._settings = settings
        self.framing = framing
        self.encode_error = encode_error
        self._timeout: WriteTimeout | None = None
        self._writer: ConnectionWriter | None = None
        self.response = web.StreamResponse(headers={**framing.headers, **(headers or {})})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Returns True where the client was told of the error, which then goes no further."""
        timeout, self._timeout = self._timeout, None  # they know each other, and would wait for a garbage collection
        encode_error, self.encode_error = self.encode_error, None
        if timeout is None:
            return False
        try:
            if not isinstance(error, Exception) or isinstance(error, ConnectionError):
                return False  # a broken connection takes no event
            if encode_error is None:
                self._cut()  # otherwise the client would wait for the rest of an answer that has begun
                return False
            last = encode_error(failure_of(error, "stream_failed"))
            if last is None:
                self._cut()
            else:
                await timeout.finish(partial(self.response.write_eof, last))
            return True
        finally:
            await timeout.__aexit__(kind, error, trace)

    @property
    def is_open(self) -> bool:
        return self._timeout is not None

    async def open(self, first: bytes = b"") -> None:
        """Sends headers and what shows a proxy a living stream, unless it is open already, and then `first`."""
        if self._timeout is not None:
            if first:
                await self._timeout.write(first)
            return
        await self.response.prepare(self._request)
        is_chunked = self.response.headers.get(hdrs.TRANSFER_ENCODING) == "chunked"  # not for a client of HTTP/1.0
        self._writer = ConnectionWriter(self._request.protocol, chunk if is_chunked else b"".join)
        timeout = WriteTimeout(
            self.response.write,
            self._cut,
            ping=self.framing.ping,
            ping_interval=self._settings.ping_interval,
            write_timeout=self._settings.write_timeout,
            writer=self._writer,
        )
        self._timeout = await timeout.__aenter__()
        await timeout.write(self.framing.opening + first)

    async def write(self, events: Sequence[bytes]) -> None:
        """Sends events, if there are any; the response is opened if it is not open yet."""
        if self._timeout is None:
            await self.open(b"".join(events))
        elif events:
            await self._timeout.write(b"".join(events))

    def sink(self, encode: Encode) -> DeltaSink:
        assert self._writer is not None
        return DeltaSink(encode, self._writer)

    def follower(self, frame: Callable[[bytes, bytes], bytes]) -> LogFollower:
        """What sends the events of a log without waiting."""
        assert self._writer is not None
        return LogFollower(frame, self._writer)

    async def end(self, events: Sequence[bytes] = ()) -> None:
        """Sends the last events; nothing more will be written."""
        if self._timeout is not None:
            await self._timeout.finish(partial(self.response.write_eof, b"".join(events)))

    def _cut(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()
