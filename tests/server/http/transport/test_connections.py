"""How many connections there may be, how long they may be silent, and who leaves unseen."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from server.admission.admission_budget import FairLimit
from server.admission.keyring import NOBODY, work_for
from server.http.transport.http_errors import Connection
from server.http.transport.json_body import MAX_UNCOUNTED, UNREAD, send_whole
from server.http.websocket import OPEN_SOCKETS
from server.protocol.errors import ApiError
from server.startup.settings import ServerSettings
from tests.fakes.engine_client import FakeEngineClient
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.support.socket_client import open_socket


async def connect(server: RunningServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))


def post(body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (size, body)


def get(path: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join([b"GET %b HTTP/1.1" % path, b"Host: localhost", *headers, b"", b""])


async def busy(server: RunningServer, count: int) -> list[asyncio.StreamWriter]:
    """Connections for whose requests the engine is at work."""
    writers = []
    for num_running in range(1, count + 1):
        _, writer = await connect(server)
        writer.write(post(b'{"prompt":"abc","max_tokens":100}'))
        await eventually(lambda: len(server.engine.running) == num_running)  # noqa: B023
        writers.append(writer)
    return writers


async def answer_to(server: RunningServer, request: bytes) -> tuple[int, bytes]:
    reader, writer = await connect(server)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()
    return int(answer.split()[1]), answer


async def test_a_connection_too_many_is_told_so(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(is_manual=True), max_connections=2)
    writers = await busy(server, 2)
    status, answer = await answer_to(server, get(b"/v1/models"))
    assert status == 503
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"Retry-After: 1" in head
    error = json.loads(body)["error"]
    assert error["code"] == "too_many_connections"
    assert "2 connections" in error["message"]
    for writer in writers:
        writer.transport.abort()
    await eventually(lambda: not server.engine.running)
    assert (await server.get("/v1/models"))[0] == 200


@pytest.mark.parametrize("path", [b"/liveness", b"/readiness", b"/health", b"/metrics"])
async def test_probes_are_answered_where_no_place_is_free(start_server: StartServer, path: bytes) -> None:
    server = await start_server(FakeEngineClient(is_manual=True), max_connections=2)
    writers = await busy(server, 2)
    silent = [await connect(server) for _ in range(5)]
    assert (await answer_to(server, get(path)))[0] == 200
    for writer in (*writers, *(writer for _, writer in silent)):
        writer.transport.abort()


async def test_a_flood_beyond_the_limit_takes_few_descriptors(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(is_manual=True), max_connections=1)
    (first,) = await busy(server, 1)
    assert server.runner.server is not None
    flood = [await connect(server) for _ in range(10)]
    for reader, _ in flood[:8]:
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
    await eventually(lambda: len(server.runner.server.connections) <= 3)
    for writer in (first, *(writer for _, writer in flood)):
        writer.transport.abort()


@pytest.mark.parametrize(
    "beginning",
    [b"", b"GET / HTTP/1.1\r\nX-Slow: ", get(b"/liveness"), post(b"{", 1000)],
    ids=["silent", "half a head", "idle", "half a body"],
)
async def test_connections_that_wait_for_their_clients_make_room(start_server: StartServer, beginning: bytes) -> None:
    server = await start_server(max_connections=4)
    flood = []
    for _ in range(20):
        reader, writer = await connect(server)
        writer.write(beginning)
        await asyncio.sleep(0.01)
        flood.append((reader, writer))
    assert (await answer_to(server, get(b"/v1/models", b"Connection: close")))[0] == 200
    for _, writer in flood:
        writer.transport.abort()


async def test_strangers_do_not_end_an_idle_connection_of_a_client_with_a_key(start_server: StartServer) -> None:
    server = await start_server(max_connections=4, api_keys=("client-key-1",))
    reader, writer = await connect(server)
    request = get(b"/v1/models", b"Authorization: Bearer client-key-1")
    strangers = []
    for _ in range(2):
        writer.write(request)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        assert head.startswith(b"HTTP/1.1 200 ")
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        for _ in range(10):
            strangers.append(await connect(server))
            strangers[-1][1].write(get(b"/liveness"))
            await asyncio.sleep(0.01)
    for _, each in (*strangers, (reader, writer)):
        each.transport.abort()


async def test_strangers_who_never_stop_to_send_requests_make_room(start_server: StartServer) -> None:
    server = await start_server(max_connections=4, api_keys=("client-key-1",))
    request = get(b"/v1/models", b"Connection: close", b"Authorization: Bearer client-key-1")
    strangers = []
    for _ in range(10):
        _, writer = await connect(server)
        writer.write(get(b"/v1/models") * 100)
        strangers.append(writer)
    for _ in range(10):
        for writer in strangers:
            writer.write(get(b"/v1/models") * 10)
        assert (await answer_to(server, request))[0] == 200
    for writer in strangers:
        writer.transport.abort()


async def test_a_client_with_a_key_does_not_wait_behind_strangers(start_server: StartServer) -> None:
    server = await start_server(api_keys=("client-key-1",))
    address = "127.0.0.1", int(server.url.rpartition(":")[2])
    with contextlib.ExitStack() as ending:
        strangers = [ending.enter_context(socket.create_connection(address)) for _ in range(60)]
        client = ending.enter_context(socket.create_connection(address))
        for stranger in strangers:
            stranger.sendall(get(b"/v1/models"))
        client.sendall(get(b"/v1/models", b"Authorization: Bearer client-key-1"))
        for each in (client, *strangers):
            each.setblocking(False)
        answer = b""
        async with asyncio.timeout(PATIENCE_S):
            while not answer:
                await asyncio.sleep(0)
                with contextlib.suppress(BlockingIOError):
                    answer = client.recv(1 << 12)
        assert answer.startswith(b"HTTP/1.1 200 ")
        num_answered = 0
        for stranger in strangers:
            with contextlib.suppress(BlockingIOError):
                num_answered += bool(stranger.recv(1))
        assert num_answered < len(strangers) / 2


async def test_a_client_behind_a_trusted_proxy_has_its_share(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(is_manual=True), max_connections=8, trusted_proxies=("127.0.0.0/8",))
    body = b'{"prompt":"abc","max_tokens":100}'
    writers = []
    for num_running in range(1, 8):
        _, writer = await connect(server)
        writer.write(post(body).replace(b"Host:", b"X-Forwarded-For: 10.9.9.9, 10.0.0.1\r\nHost:"))
        await eventually(lambda: len(server.engine.running) == num_running)  # noqa: B023
        writers.append(writer)
    assert (await answer_to(server, get(b"/v1/models", b"X-Forwarded-For: 10.0.0.1", b"Connection: close")))[0] == 503
    assert (await answer_to(server, get(b"/v1/models", b"X-Forwarded-For: 10.0.0.2", b"Connection: close")))[0] == 200
    for writer in writers:
        writer.transport.abort()


async def test_a_socket_too_many_is_told_so(start_server: StartServer) -> None:
    server = await start_server(max_websockets=1)
    async with open_socket(server):
        with pytest.raises(InvalidStatus) as refused:
            async with open_socket(server):
                pass
    assert refused.value.response.status_code == 429
    assert json.loads(refused.value.response.body)["error"]["code"] == "too_many_websockets"


async def test_one_key_leaves_sockets_to_others(start_server: StartServer) -> None:
    server = await start_server(max_websockets=4, api_keys=("ann-key-1234 ann", "bob-key-1234 bob"))
    ann, bob = ({"additional_headers": {"Authorization": f"Bearer {name}-key-1234"}} for name in ("ann", "bob"))
    async with open_socket(server, **ann):
        async with open_socket(server, **ann), open_socket(server, **bob):
            with pytest.raises(InvalidStatus) as refused:
                async with open_socket(server, **ann):
                    pass
            message = json.loads(refused.value.response.body)["error"]["message"]
            assert message == (
                "3 WebSockets are open, 2 with this key, which may have half of what others leave; "
                "the limit of this server is 4; try again later"
            )
        await eventually(lambda: len(server.app[OPEN_SOCKETS]) == 1)
        async with open_socket(server, **ann), open_socket(server, **bob):
            pass


@pytest.mark.parametrize("said_before", [b"", b"GET /liveness HTTP/1.1\r\nHost: localhost\r\n\r\n"])
async def test_a_header_that_trickles_in_has_a_deadline(start_server: StartServer, said_before: bytes) -> None:
    server = await start_server(keep_alive_timeout=0.3)
    reader, writer = await connect(server)
    writer.write(said_before)
    started = time.monotonic()
    writer.write(b"GET /liveness HTTP/1.1\r\nX-Slow: ")
    try:
        while not reader.at_eof() and time.monotonic() - started < PATIENCE_S:
            writer.write(b"a")
            await writer.drain()
            await asyncio.sleep(0.02)
    except ConnectionError:
        pass  # it was reset
    assert time.monotonic() - started < PATIENCE_S
    writer.close()


async def test_a_body_that_trickles_in_has_a_deadline(start_server: StartServer) -> None:
    server = await start_server(body_timeout=0.2)
    reader, writer = await connect(server)
    writer.write(post(b'{"prompt":', 1000))
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
    assert head.startswith(b"HTTP/1.1 408 ")
    writer.close()
    assert server.served.admission_budget.num_bytes == 0


async def test_a_chunked_body_has_the_same_limit(start_server: StartServer) -> None:
    server = await start_server(max_body_bytes=2000)
    reader, writer = await connect(server)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    writer.write(b"%x\r\n%b\r\n" % (1500, b"a" * 1500) * 2)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
    assert head.startswith(b"HTTP/1.1 413 ")
    writer.close()


async def test_an_announced_body_over_the_limit_is_not_read(start_server: StartServer) -> None:
    server = await start_server(max_body_bytes=2000)
    reader, writer = await connect(server)
    writer.write(post(b"", 10**12))
    assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)).startswith(b"HTTP/1.1 413 ")
    writer.close()


async def test_a_client_that_leaves_while_it_is_not_read_is_noticed(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    _, writer = await connect(server)
    writer.write(post(b'{"prompt":"abc","max_tokens":100}'))
    await eventually(lambda: len(engine.running) == 1)
    flood = b"GET /liveness HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000  # requests behind it, until reading is paused
    writer.write(flood)
    await asyncio.sleep(0.3)
    writer.transport.abort()
    await eventually(lambda: len(engine.aborted) == 1)


class Response:
    """An answer of which its client takes nothing until the connection is cut."""

    def __init__(self, cut: asyncio.Event, num_bytes: int = 0) -> None:
        self._cut = cut
        self.body = bytes(num_bytes)

    async def prepare(self, request: object) -> None:
        pass

    async def write_eof(self) -> None:
        await self._cut.wait()
        raise ConnectionResetError


class Request:
    """One whose connection can be cut, to an application with a limit of the bytes that are not read."""

    def __init__(self, limit: FairLimit) -> None:
        self.cut = asyncio.Event()
        self.app = {UNREAD: limit}
        self.transport = SimpleNamespace(abort=self.cut.set)

    def send(
        self, num_bytes: int = 0, *, tenant: str = NOBODY, write_timeout: float = PATIENCE_S, is_owed: bool = False
    ) -> asyncio.Task:
        settings = ServerSettings(write_timeout=write_timeout)

        async def send() -> None:
            work_for(tenant)
            await send_whole(self, Response(self.cut, num_bytes), settings, is_owed=is_owed)  # type: ignore[arg-type]

        return asyncio.create_task(send())


async def test_a_whole_answer_that_is_not_read_is_cut_off() -> None:
    request = Request(FairLimit(1))
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(request.send(write_timeout=0.05), PATIENCE_S)
    assert request.cut.is_set()


async def test_large_answers_that_are_not_read_are_bounded() -> None:
    limit = FairLimit(10 * MAX_UNCOUNTED)
    request = Request(limit)
    large = 5 * MAX_UNCOUNTED
    waiting = [request.send(large), request.send(large), request.send(MAX_UNCOUNTED)]  # the last is small
    await asyncio.sleep(0)
    assert limit.total == 2 * large
    with pytest.raises(ApiError, match=f"answers of {2 * large} bytes wait until clients read them; the") as refused:
        await request.send(MAX_UNCOUNTED + 1)
    assert (refused.value.status, refused.value.code) == (429, "too_much_unread")
    assert refused.value.headers["Retry-After"] == "1"
    waiting.append(request.send(large, is_owed=True))
    await asyncio.sleep(0)
    assert not waiting[-1].done()  # it is being sent
    assert limit.total == 2 * large
    request.cut.set()
    assert {type(end) for end in await asyncio.gather(*waiting, return_exceptions=True)} == {ConnectionResetError}
    assert limit.total == 0


async def test_a_large_answer_alone_is_always_sent() -> None:
    limit = FairLimit(1)
    request = Request(limit)
    sending = request.send(2 * MAX_UNCOUNTED)
    await asyncio.sleep(0)
    assert limit.total == 2 * MAX_UNCOUNTED
    request.cut.set()
    with pytest.raises(ConnectionResetError):
        await sending


async def test_one_key_leaves_unread_bytes_to_others() -> None:
    request = Request(FairLimit(8 * MAX_UNCOUNTED))
    sending = [request.send(2 * MAX_UNCOUNTED, tenant="ann") for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(ApiError, match="with this key, which may have half of what others leave"):
        await request.send(2 * MAX_UNCOUNTED, tenant="ann")
    sending.append(request.send(4 * MAX_UNCOUNTED, tenant="bob"))
    await asyncio.sleep(0)
    assert not any(task.done() for task in sending)
    request.cut.set()
    await asyncio.gather(*sending, return_exceptions=True)


async def test_what_the_engine_owes_one_key_leaves_unread_bytes_to_others() -> None:
    limit = FairLimit(8 * MAX_UNCOUNTED)
    request = Request(limit)
    sending = [request.send(2 * MAX_UNCOUNTED, tenant="ann", is_owed=True) for _ in range(5)]
    await asyncio.sleep(0)
    assert limit.held_by("ann") == 4 * MAX_UNCOUNTED
    sending.append(request.send(4 * MAX_UNCOUNTED, tenant="bob"))
    await asyncio.sleep(0)
    assert not any(task.done() for task in sending)
    request.cut.set()
    await asyncio.gather(*sending, return_exceptions=True)
    assert limit.total == 0


async def test_a_request_whose_connection_is_ended_before_its_turn_is_not_handled(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await start_server()
    status, stored = await server.post("/v1/responses", {"input": "ab", "max_output_tokens": 2})
    assert status == 200
    path = f"/v1/responses/{stored['id']}"
    handle = Connection._handle_request

    async def make_room(connection: Connection, *told: Any) -> Any:
        """As for a new connection where no place is free."""
        connection._place.close()
        connection._place.release()
        return await handle(connection, *told)

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "_handle_request", make_room)
        reader, writer = await connect(server)
        writer.write(f"DELETE {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        writer.close()
    assert (await server.get(path))[0] == 200  # a client that sends it again finds what it wants to delete
