"""TLS handshakes are connections: they are counted, they have a deadline, and nothing that follows them is lost."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import tracemalloc
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from server.admission.certificate import Certificate
from server.admission.loop_throttle import LoopThrottle
from server.cli.listeners import start_sites
from server.http.transport import handshake
from server.http.transport.connections import TURNS, GuardedRunner
from server.http.transport.handshake import Handshakes
from server.startup.settings import ServerSettings
from tests.patience import PATIENCE_S
from tests.server.admission.test_certificate import make_certificate, needs_openssl

pytestmark = needs_openssl

ASK = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@asynccontextmanager
async def guarded(tmp_path: Path, **limits: int) -> AsyncIterator[int]:
    """The port of a TLS server that answers everything with "here"."""

    async def here(request: web.Request) -> web.Response:
        return web.Response(text=f"here {request.scheme}")

    app = web.Application()
    app[TURNS] = LoopThrottle()
    app.router.add_get("/", here)
    context = Certificate(*make_certificate(tmp_path, "served")).context
    runner = GuardedRunner(app, ServerSettings(**limits), context)
    await runner.setup()
    await start_sites(runner, ["127.0.0.1"], 0)
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def ask(port: int) -> bytes:
    """The answer to a request over TLS; empty where the server wants no handshake."""
    context = ssl._create_unverified_context()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    except OSError:
        return b""
    writer.write(ASK)
    answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()
    return answer


def first_message() -> bytes:
    """What a client of TLS says first."""
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl._create_unverified_context().wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


async def silent(port: int, count: int) -> list[asyncio.StreamWriter]:
    """Connections whose handshakes never come."""
    return [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(count)]


async def test_handshakes_that_do_not_go_on_count_as_connections_and_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 10 * PATIENCE_S)
    async with guarded(tmp_path, max_connections=2) as port:
        stalled = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        for reader, _ in stalled[:3]:
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        assert (await ask(port)).endswith(b"here https")
        for _, writer in stalled:
            writer.transport.abort()


async def test_a_handshake_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 0.1)
    async with guarded(tmp_path) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01\x02\x00")  # the head of a first message
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        writer.close()


async def test_a_client_that_leaves_in_its_handshake_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 10 * PATIENCE_S)
    async with guarded(tmp_path, max_connections=1) as port:
        for beginning in (b"", b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\n\r\n"):
            (writer,) = await silent(port, 1)
            writer.write(beginning)
            writer.close()
        async with asyncio.timeout(PATIENCE_S):
            while not (await ask(port)).endswith(b"here https"):
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00", b"\x16\x03\x01\x02\x00" + bytes(200_000)])
async def test_handshakes_that_do_not_go_on_take_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 10 * PATIENCE_S)
    monkeypatch.setattr(handshake, "COMPUTED_AT_ONCE", 0 if len(sent) > 1000 else 2)  # their turn does not come
    count = 40
    async with guarded(tmp_path) as port:
        tracemalloc.start()
        try:
            clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
            for client in clients:
                client.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    client.send(sent)
            most, _ = tracemalloc.get_traced_memory()
            for _ in range(60):  # turns of the loop, in which the server reads
                await asyncio.sleep(0.005)
                most = max(most, tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        for client in clients:
            client.close()
    assert count * 10_000 < most < count * 100_000


async def test_what_comes_with_the_end_of_a_handshake_is_not_lost(tmp_path: Path) -> None:
    """The last bytes of the handshake and the request in one packet."""
    context = ssl._create_unverified_context()
    async with guarded(tmp_path) as port:
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = context.wrap_bio(incoming, outgoing)
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    writer.write(outgoing.read())
                    incoming.write(await asyncio.wait_for(reader.read(1 << 16), PATIENCE_S))
            tls.write(ASK)
            writer.write(outgoing.read())
            answer = b""
            async with asyncio.timeout(PATIENCE_S):
                while b"here https" not in answer:
                    incoming.write(await reader.read(1 << 16))
                    try:
                        answer += tls.read(1 << 16)
                    except ssl.SSLWantReadError:
                        continue
            writer.close()


async def test_a_crowd_that_sends_its_first_messages_at_once_is_computed_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed, is_over = [0], False  # in each turn of the loop
    compute, loop = SSLProtocol.buffer_updated, asyncio.get_running_loop()

    def count(protocol: SSLProtocol, num_bytes: int) -> None:
        computed[-1] += 1
        compute(protocol, num_bytes)

    def next_turn() -> None:
        computed.append(0)
        if not is_over:
            loop.call_soon(next_turn)

    monkeypatch.setattr(SSLProtocol, "buffer_updated", count)
    async with guarded(tmp_path) as port:
        with contextlib.ExitStack() as crowd:
            clients = [crowd.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(40)]
            await asyncio.sleep(0.1)
            loop.call_soon(next_turn)
            for client in clients:
                client.sendall(first_message())
            async with asyncio.timeout(PATIENCE_S):
                while sum(computed) < len(clients):
                    await asyncio.sleep(0)
            is_over = True
            assert max(computed) <= handshake.COMPUTED_AT_ONCE
            for client in clients:  # each is answered
                client.settimeout(PATIENCE_S)
                assert client.recv(1)


async def test_one_that_comes_behind_a_crowd_of_its_own_address_does_not_wait_for_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []  # ports of the clients, in the order in which their messages are computed
    clients: list[socket.socket] = []
    compute = SSLProtocol.buffer_updated

    def note(protocol: SSLProtocol, num_bytes: int) -> None:
        if not computed:
            clients[-1].sendall(first_message())
        computed.append(protocol._transport.get_extra_info("peername")[1])  # type: ignore[attr-defined]
        compute(protocol, num_bytes)

    monkeypatch.setattr(SSLProtocol, "buffer_updated", note)
    async with guarded(tmp_path) as port:
        with contextlib.ExitStack() as crowd:
            clients += [crowd.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(60)]
            await asyncio.sleep(0.1)
            for client in clients[:-1]:  # the loop reads them all before it computes any
                client.sendall(first_message())
            async with asyncio.timeout(PATIENCE_S):
                while len(computed) < len(clients):
                    await asyncio.sleep(0.01)
            assert computed.index(clients[-1].getsockname()[1]) < len(clients) // 2


async def test_a_server_that_ends_does_not_wait_for_handshakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 10 * PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S):
        async with guarded(tmp_path) as port:
            (writer,) = await silent(port, 1)
            await asyncio.sleep(0.05)
        writer.close()


async def test_a_handshake_that_is_ended_before_it_begins_ends_its_connection(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        transport, _ = await asyncio.get_running_loop().connect_accepted_socket(asyncio.Protocol, ours)
        handshakes = Handshakes(Certificate(*make_certificate(tmp_path, "served")).context)
        failed = asyncio.Event()
        handshakes.start(transport, "ann", asyncio.Protocol, failed.set)
        await handshakes.close()
        assert transport.is_closing()
        await asyncio.wait_for(failed.wait(), PATIENCE_S)
