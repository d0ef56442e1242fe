"""Accepts connections, many in one turn of the loop, because nothing is made for one until its client speaks.

asyncio makes a transport, a protocol and a task for each connection that it accepts, so that only few can be accepted
in one turn while tokens of streams wait. A crowd of connections then fills the system's queue, and a probe waits at its
end.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Any

from engine.interface.log_interval import LogInterval
from server.admission.fair_queue import FairQueue
from server.http.accepting.connection_places import ConnectionPlaces, Place
from server.http.accepting.descriptors import are_scarce
from server.http.accepting.trusted_proxies import TrustedProxies, owner_of
from server.startup.logs import log

ACCEPTED_AT_ONCE = 32  # connections, in one turn of the loop; each takes about 30 µs
BEGUN_AT_ONCE = 8  # of those whose client has spoken: a transport and what else it needs take ten times as long
RETRY_S = 1.0  # until the next attempt, where the system has nothing left for another connection
_LEAST_ACCEPTED = 4
_EVERY = 4  # one in so many that begin is none of those that go first: whoever likes may send probes
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PEEKED = 2048  # bytes of a request's head, for its path and its key

# Begins to serve a connection, with its place, which may be another's by then, and whether its peer is a trusted proxy.
Begin = Callable[[asyncio.Transport, Place, bool], None]


class Acceptor:
    """Accepts the connections of a server's listening sockets.

    Connections whose client has spoken are begun a few at a time; addresses take turns.

    Args:
        begin: is given each connection that begins.
        first: whose turn a connection takes that goes before others, by the first bytes that its client has sent: a
            name, or "" for its address. None where it does not.
    """

    def __init__(
        self,
        places: ConnectionPlaces,
        proxies: TrustedProxies,
        begin: Begin,
        first: Callable[[bytes], str | None],
    ) -> None:
        self._places = places
        self._proxies = proxies
        self._begin = begin
        self._find_first = first
        self._loop = asyncio.get_running_loop()
        # In the few turns until one has begun, those that come after it must not end it for want of places.
        self._at_once = max(_LEAST_ACCEPTED, min(ACCEPTED_AT_ONCE, places.limit // 64))
        self._listeners: set[socket.socket] = set()
        self._silent: set[_Arrival] = set()
        self._first: FairQueue[_Arrival] = FairQueue()
        self._spoken: FairQueue[_Arrival] = FairQueue()
        self._is_beginning = False  # `_begin_some` is scheduled
        self._tasks: set[asyncio.Task[Any]] = set()
        self._interval = LogInterval()

    def add(self, listener: socket.socket) -> None:
        """Accepts at a listening socket from now on."""
        listener.setblocking(False)
        self._listeners.add(listener)
        self._loop.add_reader(listener, self._accept, listener)

    def remove(self, listener: socket.socket) -> None:
        """Closes a listening socket."""
        self._listeners.discard(listener)
        self._loop.remove_reader(listener)
        listener.close()

    async def close(self) -> None:
        """Closes all listening sockets, and the connections that have not begun."""
        for listener in tuple(self._listeners):
            self.remove(listener)
        for arrival in tuple(self._silent):
            arrival.end()
        while self._first or self._spoken:
            self._next().end()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(self._at_once):
            try:
                connection, peer = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:  # of the connection alone
                    continue
                if self._interval.is_due():
                    log.error("accept_failed", reason=str(error))
                self._loop.remove_reader(listener)
                self._loop.call_later(RETRY_S, self._retry, listener)
                return
            self._receive(connection, peer)

    def _retry(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)

    def _receive(self, connection: socket.socket, peer: object) -> None:
        """Gives a new connection a place, or ends it."""
        connection.setblocking(False)
        is_proxy = isinstance(peer, tuple) and self._proxies.trusts(peer)
        arrival = _Arrival(self, connection, is_proxy=is_proxy)
        place = self._places.take(
            owner_of(peer),
            arrival.close,
            is_trusted=is_proxy or not isinstance(peer, tuple),  # a Unix socket is the user's own
            is_scarce=are_scarce(connection.fileno()),
        )
        if place is None:
            connection.close()
            return
        arrival.place = place
        self._silent.add(arrival)
        self._loop.add_reader(connection, self._hear, arrival)

    def _hear(self, arrival: _Arrival) -> None:
        """The client has spoken, or left."""
        try:
            head = arrival.connection.recv(_PEEKED, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            head = b""
        if not head:
            arrival.end()
            return
        self.forget(arrival)
        first = self._find_first(head)
        (self._spoken if first is None else self._first).put(first or arrival.place.owner, arrival)
        if not self._is_beginning:
            self._is_beginning = True
            self._loop.call_soon(self._begin_some)

    def forget(self, arrival: _Arrival) -> None:
        """Waits no longer for a client's first bytes. Idempotent."""
        if arrival in self._silent:
            self._silent.discard(arrival)
            self._loop.remove_reader(arrival.connection)

    def _begin_some(self) -> None:
        self._is_beginning = False
        num_begun = 0
        while num_begun < BEGUN_AT_ONCE and (self._first or self._spoken):
            arrival = self._next(for_others=num_begun % _EVERY == _EVERY - 1)
            if arrival.place.is_released:
                continue
            task = self._loop.create_task(arrival.begin(self._begin))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            num_begun += 1
        if self._first or self._spoken:
            self._is_beginning = True
            self._loop.call_soon(self._begin_some)

    def _next(self, *, for_others: bool = False) -> _Arrival:
        is_first = bool(self._first) and not (for_others and self._spoken)
        return (self._first if is_first else self._spoken).take()


class _Arrival(asyncio.Protocol):
    """A connection that has been accepted, and its protocol until the server has another one for it."""

    place: Place

    def __init__(self, acceptor: Acceptor, connection: socket.socket, *, is_proxy: bool) -> None:
        self._acceptor = acceptor
        self.connection = connection
        self._is_proxy = is_proxy
        self._begin: Begin | None = None

    def close(self) -> None:
        """Closes the connection, whose place is another's."""
        self._acceptor.forget(self)
        self.connection.close()

    def end(self) -> None:
        """Closes the connection and gives its place back."""
        self.close()
        self.place.release()

    async def begin(self, begin: Begin) -> None:
        """Makes the connection's transport."""
        self._begin = begin
        self.place.close = _nothing  # asyncio has the socket now
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: self, self.connection)
        except OSError:
            self.end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        assert self._begin is not None
        if not self.place.is_released:
            self.place.close = transport.abort
        self._begin(transport, self.place, self._is_proxy)


def _nothing() -> None:
    pass
