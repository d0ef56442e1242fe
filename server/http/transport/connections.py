"""The server's connections: their places, their deadlines, and the detection of clients that have left."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
from typing import Any

from aiohttp import web

from server.admission.keyring import KeyRing
from server.admission.loop_throttle import PROBES_AT_ONCE, LoopThrottle
from server.http.accepting.acceptor import Acceptor
from server.http.accepting.connection_places import ConnectionPlaces, Place
from server.http.accepting.descriptors import num_connections
from server.http.accepting.first_bytes import FirstBytes
from server.http.accepting.trusted_proxies import TrustedProxies
from server.http.transport.aiohttp_internals import untie_transport
from server.http.transport.handshake import Handshakes
from server.http.transport.http_errors import Connection, shaping_errors
from server.http.transport.request_paths import RequestPaths
from server.startup.settings import ServerSettings

TURNS = web.AppKey("turns", LoopThrottle)  # of every application; probes have others
KEYS = web.AppKey("keys", KeyRing)  # of an application whose routes want keys
DESCRIPTORS = web.AppKey("descriptors", int)  # of one connection, where it has more than its own

LEFT_CHECK_S = 1.0  # between two looks at the connections that are not read
OVERDUE_CHECK_S = 0.25  # between two looks at the connections that have sent no head, while there are any
IDLE_CHECK_S = LEFT_CHECK_S  # while there are none; timers of the same length end in the same turn of the loop
ENDED_AT_ONCE = 32  # of these, in one iteration of the loop
SHUTDOWN_S = 2.0  # for what is left in socket buffers when the streams have ended
_HAS_LEFT = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)


class GuardedRunner(web.AppRunner):
    """A runner whose connections have limits.

    aiohttp closes a connection that has sent no whole header within the keep-alive time, counted from the last answer.
    The first header has a shorter deadline (`ConnectionPlaces`).
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
        paths = RequestPaths(self._settings.api_prefix, self._settings.apis)
        return GuardedServer(
            shaping_errors(plain.request_handler),
            request_factory=paths.renaming(plain.request_factory),
            settings=self._settings,
            turns=self.app[TURNS],
            tls_context=self._tls_context,
            keys=self.app.get(KEYS),
            num_descriptors=self.app.get(DESCRIPTORS, 1),
            keepalive_timeout=self._settings.keep_alive_timeout,
            access_log=None,  # our own middleware logs
            auto_decompress=False,  # `read_body` does, where the body is wanted
            lingering_time=0,  # `Connection` ends a request whose body was not read
        )


class GuardedServer(web.Server):
    """Accepts connections, gives each a place and a protocol, and ends those for which there is no place."""

    def __init__(
        self,
        handler: Any,
        *,
        settings: ServerSettings,
        turns: LoopThrottle,
        tls_context: ssl.SSLContext | None,
        keys: KeyRing | None,
        num_descriptors: int,
        request_factory: Any,
        **options: Any,
    ) -> None:
        super().__init__(handler, request_factory=request_factory, handler_cancellation=True, **options)
        self._options = options
        self._settings = settings
        self._turns = turns
        self._keys = keys
        self._probe_turns = LoopThrottle(PROBES_AT_ONCE)
        self._handshakes = None if tls_context is None else Handshakes(tls_context)
        self._proxies = TrustedProxies(settings.trusted_proxies)
        self.places = ConnectionPlaces(
            num_connections(settings.max_connections, num_descriptors),
            asyncio.get_running_loop().time,
            first_head=settings.keep_alive_timeout,
        )
        first_bytes = FirstBytes(settings.api_prefix, keys, is_encrypted=tls_context is not None)
        self.acceptor = Acceptor(self.places, self._proxies, self._begin, first_bytes.owner)
        self._watching = (
            asyncio.create_task(self._cut_those_who_left()),
            asyncio.create_task(self._end_overdue()),
        )

    def __call__(self) -> web.RequestHandler:
        raise NotImplementedError("this server accepts connections itself; give its acceptor the listening sockets")

    def _begin(self, transport: asyncio.Transport, place: Place, is_proxy: bool) -> None:
        """Gives a connection its protocol, unless it has lost its place."""
        if place.is_released:
            transport.abort()
            untie_transport(transport)
            return

        def make_connection() -> Connection:
            return Connection(
                self,
                place=place,
                keys=self._keys,
                turns=self._turns,
                probe_turns=self._probe_turns,
                proxies=self._proxies if is_proxy else None,
                loop=asyncio.get_running_loop(),
                **self._options,
            )

        if self._handshakes is None:
            connection = make_connection()
            transport.set_protocol(connection)
            connection.connection_made(transport)
        else:
            self._handshakes.start(transport, place.owner, make_connection, place.release)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        _limit_unread(transport, self._settings.write_timeout)

    async def shutdown(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - aiohttp calls it so
        for task in self._watching:
            task.cancel()
        await self.acceptor.close()
        if self._handshakes is not None:
            await self._handshakes.close()
        await super().shutdown(timeout)

    async def _cut_those_who_left(self) -> None:
        """Aborts connections whose client has left while reading is paused, which asyncio does not notice by itself."""
        while True:
            await asyncio.sleep(LEFT_CHECK_S)
            self._cut_now()

    def _cut_now(self) -> None:
        """A function of its own, because the task would keep a connection that is in one of its variables."""
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

    async def _end_overdue(self) -> None:
        """Ends connections that have sent no head in time."""
        while True:
            has_more = self.places.end_overdue(ENDED_AT_ONCE) == ENDED_AT_ONCE
            wait = OVERDUE_CHECK_S if self.places.has_new else IDLE_CHECK_S
            await asyncio.sleep(0 if has_more else wait)


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
