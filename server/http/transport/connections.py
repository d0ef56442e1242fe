"""Limits of the server's connections: their number, idle time, and the detection of clients that have left."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
from typing import Any, cast

from aiohttp import web

from server.admission.loop_throttle import PROBES_AT_ONCE, LoopThrottle
from server.http.transport.aiohttp_internals import bare_transport, untie_transport
from server.http.transport.handshake import Handshakes
from server.http.transport.http_errors import Connection, shaping_errors
from server.startup.settings import ServerSettings

TURNS = web.AppKey("turns", LoopThrottle)  # of every application; probes have others

LEFT_CHECK_S = 1.0  # between two looks at the connections that are not read
REFUSAL_S = 1.0  # for a client to read why it is refused
MAX_REFUSALS = 32  # connections beyond the limit, for clients that are to read why they are refused
SHUTDOWN_S = 2.0  # for what is left in socket buffers when the streams have ended
_HAS_LEFT = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)

_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%b"
)
_REFUSAL_BODY = (
    b'{"error":{"message":"%d connections are open, the limit of this server; try again later",'
    b'"type":"server_error","param":null,"code":"too_many_connections"}}'
)


class GuardedRunner(web.AppRunner):
    """A runner whose connections have limits.

    aiohttp closes a connection that has sent no whole header within the keep-alive time, counted from its begin or
    from the last answer: that is the deadline of headers too.
    """

    def __init__(
        self, app: web.Application, settings: ServerSettings, tls_context: ssl.SSLContext | None = None
    ) -> None:
        """Args:
        tls_context: of all connections, whose sites have none of their own then; None: they are plain.
        """
        super().__init__(app, handle_signals=False, shutdown_timeout=SHUTDOWN_S)
        self._settings = settings
        self._tls_context = tls_context

    async def _make_server(self) -> web.Server:
        plain = await super()._make_server()
        return GuardedServer(
            shaping_errors(plain.request_handler),
            request_factory=plain.request_factory,
            settings=self._settings,
            turns=self.app[TURNS],
            tls_context=self._tls_context,
            keepalive_timeout=self._settings.keep_alive_timeout,
            access_log=None,  # our own middleware logs
        )


class GuardedServer(web.Server):
    """Makes the protocol of each connection, and refuses those beyond the limit."""

    def __init__(
        self,
        handler: Any,
        *,
        settings: ServerSettings,
        turns: LoopThrottle,
        tls_context: ssl.SSLContext | None,
        request_factory: Any,
        **options: Any,
    ) -> None:
        super().__init__(handler, request_factory=request_factory, handler_cancellation=True, **options)
        self._options = options
        self._settings = settings
        self._turns = turns
        self._probe_turns = LoopThrottle(PROBES_AT_ONCE)
        self._handshakes = None if tls_context is None else Handshakes(tls_context)
        self._refusals: set[_Refusal] = set()  # connections that are being told so
        self._watching = asyncio.create_task(self._cut_those_who_left())

    def __call__(self) -> web.RequestHandler:
        limit, handshakes = self._settings.max_connections, self._handshakes
        num_open = len(self.connections) + (0 if handshakes is None else len(handshakes))
        make = self._make_connection if num_open < limit else self._make_refusal
        if num_open >= limit and num_open + len(self._refusals) >= limit + MAX_REFUSALS:
            protocol: asyncio.Protocol = _Closing()
        else:
            protocol = make() if handshakes is None else handshakes.begin(make)
        return cast(web.RequestHandler, protocol)  # asyncio asks of it only what it asks of every protocol

    def _make_refusal(self) -> asyncio.Protocol:
        return _Refusal(self._settings.max_connections, self._refusals)

    def _make_connection(self) -> asyncio.Protocol:
        return Connection(
            self, turns=self._turns, probe_turns=self._probe_turns, loop=asyncio.get_running_loop(), **self._options
        )

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        _limit_unread(transport, self._settings.write_timeout)

    async def shutdown(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - aiohttp calls it so
        self._watching.cancel()
        if self._handshakes is not None:
            await self._handshakes.close()
        await super().shutdown(timeout)

    async def _cut_those_who_left(self) -> None:
        """Aborts connections whose client has left while reading is paused, which asyncio does not notice by itself."""
        while True:
            await asyncio.sleep(LEFT_CHECK_S)
            unread = [
                connection.transport
                for connection in self.connections
                if connection.transport is not None
                and not connection.transport.is_closing()
                and not connection.transport.is_reading()
            ]
            for transport in unread:
                if _has_left(transport):
                    transport.abort()


class _Refusal(asyncio.Protocol):
    """Tells a client that there is no room for its connection, and ends it.

    Args:
        refusals: all of them, as long as they have descriptors.
    """

    def __init__(self, limit: int, refusals: set[_Refusal]) -> None:
        body = _REFUSAL_BODY % limit
        self._answer = _REFUSAL % (len(body), body)
        self._refusals = refusals
        refusals.add(self)  # now, because connections that come together are all made before the first is told

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Answers without reading. The end comes late: it would overtake the answer where a request is unread."""
        assert isinstance(transport, asyncio.Transport)
        self._bare_transport = bare_transport(transport)
        transport.write(self._answer)
        self._end = asyncio.get_running_loop().call_later(REFUSAL_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._refusals.discard(self)
        self._end.cancel()
        untie_transport(self._bare_transport)


class _Closing(asyncio.Protocol):
    """Ends a connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
        untie_transport(transport)


def _has_left(transport: asyncio.Transport) -> bool:
    """Asks the operating system, without reading, whether the client has closed its side."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), _HAS_LEFT)
    return any(events & _HAS_LEFT for _, events in poll.poll(0))


def _limit_unread(transport: asyncio.Transport, seconds: float) -> None:
    """Sets TCP_USER_TIMEOUT: the system drops a connection whose client acknowledges nothing for `seconds`."""
    connection = transport.get_extra_info("socket")
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None and connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):  # not every system has it
            connection.setsockopt(socket.IPPROTO_TCP, option, int(seconds * 1000))
