"""Many connections are accepted at once, and those that matter most begin first."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from server.http.accepting import acceptor as accepting
from server.http.accepting.acceptor import ACCEPTED_AT_ONCE, BEGUN_AT_ONCE, Acceptor
from server.http.accepting.connection_places import ConnectionPlaces, Place
from server.http.accepting.trusted_proxies import TrustedProxies
from tests.patience import PATIENCE_S
from tests.server.conftest import eventually


@dataclass
class Server:
    """What has begun, by the first bytes that each client has sent."""

    places: ConnectionPlaces
    acceptor: Acceptor
    port: int
    begun: list[bytes] = field(default_factory=list)
    clients: list[socket.socket] = field(default_factory=list)

    def connect(self, *sent: bytes) -> None:
        for first in sent:
            client = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
            client.sendall(first)
            self.clients.append(client)


class Reader(asyncio.Protocol):
    def __init__(self, server: Server, place: Place) -> None:
        self._server = server
        self._place = place

    def data_received(self, data: bytes) -> None:
        self._server.begun.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._place.release()


@asynccontextmanager
async def accepting_server(limit: int = 4096) -> AsyncIterator[Server]:
    def begin(transport: asyncio.Transport, place: Place, is_proxy: bool) -> None:
        if place.is_released:
            transport.abort()
        else:
            transport.set_protocol(Reader(server, place))

    places = ConnectionPlaces(limit, asyncio.get_running_loop().time)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    acceptor = Acceptor(places, TrustedProxies(), begin, lambda head: "" if head == b"probe" else None)
    server = Server(places, acceptor, listener.getsockname()[1])
    acceptor.add(listener)
    try:
        yield server
    finally:
        for client in server.clients:
            client.close()
        await eventually(lambda: len(places) == 0)
        await acceptor.close()


async def test_many_connections_are_accepted_in_one_turn_and_few_begin() -> None:
    async with accepting_server() as server:
        server.connect(*[b"x"] * 2 * ACCEPTED_AT_ONCE)
        most_accepted = most_begun = 0
        async with asyncio.timeout(PATIENCE_S):
            while len(server.begun) < 2 * ACCEPTED_AT_ONCE:
                before = len(server.places), len(server.begun)
                await asyncio.sleep(0)
                most_accepted = max(most_accepted, len(server.places) - before[0])
                most_begun = max(most_begun, len(server.begun) - before[1])
        assert most_accepted == ACCEPTED_AT_ONCE
        assert most_begun <= BEGUN_AT_ONCE


async def test_nothing_is_made_for_those_who_say_nothing() -> None:
    async with accepting_server() as server:
        before = len(asyncio.all_tasks())
        server.connect(*[b""] * 100)
        await eventually(lambda: len(server.places) == 100)
        assert len(asyncio.all_tasks()) == before
        assert server.begun == []
        server.clients[0].sendall(b"at last")
        await eventually(lambda: server.begun == [b"at last"])


async def test_a_probe_begins_before_a_crowd_that_has_come_earlier() -> None:
    async with accepting_server() as server:
        server.connect(*[b"crowd"] * 60, b"probe")
        await eventually(lambda: len(server.begun) == 61)
        assert server.begun.index(b"probe") < 3 * BEGUN_AT_ONCE


async def test_a_flood_of_probes_does_not_shut_others_out() -> None:
    async with accepting_server() as server:
        server.connect(*[b"probe"] * 60, b"other")
        await eventually(lambda: len(server.begun) == 61)
        assert server.begun.index(b"other") < 61 - BEGUN_AT_ONCE


async def test_those_who_make_room_are_closed_whether_they_have_begun_or_not() -> None:
    async with accepting_server(limit=8) as server:
        server.connect(*[b"", b"x"] * 20)
        await eventually(lambda: server.begun.count(b"x") >= 3)
        await eventually(lambda: len(server.places) <= 7)
        num_closed = 0
        for client in server.clients[:-8]:
            with contextlib.suppress(ConnectionError):
                assert await asyncio.to_thread(client.recv, 1) == b""
            num_closed += 1
        assert num_closed == 32


async def test_a_client_that_leaves_before_it_speaks_gives_its_place_back() -> None:
    async with accepting_server() as server:
        server.connect(b"")
        await eventually(lambda: len(server.places) == 1)
        server.clients.pop().close()
        await eventually(lambda: len(server.places) == 0)


async def test_those_who_have_not_begun_are_closed_with_the_server() -> None:
    async with accepting_server() as server:
        server.connect(b"", b"")
        await eventually(lambda: len(server.places) == 2)
        await server.acceptor.close()
        assert [client.recv(1) for client in server.clients] == [b"", b""]
        with pytest.raises(ConnectionRefusedError):
            server.connect(b"")


class Exhausted(socket.socket):
    """A listening socket of a process that has no descriptors for a while."""

    num_failures = 3

    def accept(self) -> tuple[socket.socket, object]:
        if self.num_failures:
            self.num_failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_where_nothing_can_be_accepted_it_is_tried_again_and_logged_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accepting, "RETRY_S", 0.01)
    async with accepting_server() as server:
        listener = Exhausted()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with capture_logs() as logs:
            server.acceptor.add(listener)
            server.port = listener.getsockname()[1]
            server.connect(b"patient")
            await eventually(lambda: server.begun == [b"patient"])
        assert [(line["event"], line["reason"]) for line in logs] == [
            ("accept_failed", "[Errno 24] Too many open files")
        ]
