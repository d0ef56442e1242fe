"""What many clients at once, or one of them, may take of one turn of the loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sized
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from server.admission.loop_throttle import BEGUN_AT_ONCE, PROBES_AT_ONCE
from server.http.responses.response_socket import ResponseSocket
from server.http.streams.generation_socket import GenerationSocket
from server.http.transport import http_errors
from server.http.transport.http_errors import Connection
from tests.fakes.engine_client import FakeEngineClient
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.http.streams.test_websocket_fuzz import BINARY, HANDSHAKE, PING, PONG, TEXT, frame
from tests.server.serving.conftest import several

MANY = 100
MOST = 2 * BEGUN_AT_ONCE  # between two turns of a test lie parts of two turns of the server
BODY = b'{"prompt":"a"}'
HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n" % len(BODY)
)


async def most_in_a_turn(begun: Sized, num_all: int) -> int:
    """How many begin in one turn of the loop, at most, until so many have begun."""
    most, num_begun = 0, len(begun)
    async with asyncio.timeout(PATIENCE_S):
        while num_begun < num_all:
            await asyncio.sleep(0)
            most, num_begun = max(most, len(begun) - num_begun), len(begun)
    return most


@asynccontextmanager
async def connections(
    server: RunningServer, count: int
) -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    """Connections that the server has begun: their clients have sent an empty line, as they may before a request."""
    async with AsyncExitStack() as ending:
        opened = []
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
            ending.callback(writer.transport.abort)
            writer.write(b"\r\n")
            opened.append((reader, writer))
        assert server.runner.server is not None
        await eventually(lambda: len(open_connections(server)) == count)
        yield opened


def open_connections(server: RunningServer) -> list[Connection]:
    assert server.runner.server is not None
    return [connection for connection in server.runner.server.connections if isinstance(connection, Connection)]


async def test_a_thousand_open_connections_may_all_send_at_once(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    async with connections(server, MANY + 1) as opened:
        *asking, (probe, probing) = opened
        for _, writer in asking:
            writer.write(HEAD + BODY)
        probing.write(b"GET /liveness HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert 0 < await most_in_a_turn(engine.submitted, MANY) <= MOST
        assert (await asyncio.wait_for(probe.readline(), PATIENCE_S)).startswith(b"HTTP/1.1 200 ")
        engine.step(2)
        for reader, _ in asking:
            assert (await asyncio.wait_for(reader.readline(), PATIENCE_S)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("path", [b"/liveness", b"/readiness"])
async def test_a_probe_waits_for_no_crowd(start_server: StartServer, path: bytes) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    async with connections(server, MANY + 1) as opened:
        *asking, (probe, probing) = opened
        for _, writer in asking:
            writer.write(HEAD + BODY)
        probing.write(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path)
        await eventually(lambda: bool(engine.submitted))
        assert (await asyncio.wait_for(probe.readline(), PATIENCE_S)).startswith(b"HTTP/1.1 200 ")
        assert len(engine.submitted) < MANY // 2


async def test_a_probe_waits_for_no_flood_of_probes_from_another_address(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, handled = list[str](), Connection._handle_request

    def address(transport: Any) -> str:
        return "orchestrator" if transport.get_extra_info("peername") == orchestrator else "crowd"

    async def noting(connection: Connection, request: Any, started_at: Any, handle: Any) -> Any:
        async def note(request: Any) -> Any:
            answered.append(address(request.transport))
            return await handle(request)

        return await handled(connection, request, started_at, note)

    monkeypatch.setattr(http_errors, "prober", address)
    monkeypatch.setattr(Connection, "_handle_request", noting)
    server = await start_server()
    async with connections(server, MANY + 1) as opened:
        *flooding, (probe, probing) = opened
        orchestrator = probing.get_extra_info("sockname")
        for _, writer in (*flooding, (probe, probing)):
            writer.write(b"GET /liveness HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for reader, _ in opened:
            assert (await asyncio.wait_for(reader.readline(), PATIENCE_S)).startswith(b"HTTP/1.1 200 ")
    assert len(answered) == MANY + 1
    assert answered.index("orchestrator") < MANY // 2


async def test_a_flood_of_probes_gives_the_loop_its_turns(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, handled = list[str](), Connection._handle_request

    async def noting(connection: Connection, request: Any, started_at: Any, handle: Any) -> Any:
        async def note(request: Any) -> Any:
            answered.append(request.path)
            return await handle(request)

        return await handled(connection, request, started_at, note)

    monkeypatch.setattr(Connection, "_handle_request", noting)
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    async with connections(server, MANY + 1) as opened:
        *flooding, (_, asking) = opened
        for _, writer in flooding:
            writer.write(b"GET /liveness HTTP/1.1\r\nHost: localhost\r\n\r\n")
        asking.write(HEAD + BODY)
        assert 0 < await most_in_a_turn(answered, MANY + 1) <= 2 * (PROBES_AT_ONCE + 1)
        assert answered.index("/v1/completions") < MANY // 2
        for reader, _ in flooding:
            assert (await asyncio.wait_for(reader.readline(), PATIENCE_S)).startswith(b"HTTP/1.1 200 ")


async def test_what_is_no_request_takes_a_turn_too(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = list[object]()
    handle_error = Connection.handle_error

    def noting(connection: Connection, *args: Any, **options: Any) -> Any:
        refused.append(connection)
        return handle_error(connection, *args, **options)

    monkeypatch.setattr(Connection, "handle_error", noting)
    async with connections(server, MANY) as opened:
        for _, writer in opened:
            writer.write(b"what\r\n\r\n")
        assert 0 < await most_in_a_turn(refused, MANY) <= MOST
        for reader, _ in opened:
            assert (await asyncio.wait_for(reader.readline(), PATIENCE_S)).split()[1] == b"400"


async def test_the_ends_of_their_bodies_may_come_together(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    async with connections(server, MANY) as opened:
        for _, writer in opened:
            writer.write(HEAD + BODY[:5])
        await eventually(lambda: all(connection._current_request for connection in open_connections(server)))
        for _, writer in opened:
            writer.write(BODY[5:])
        assert 0 < await most_in_a_turn(engine.submitted, MANY) <= MOST


async def test_a_socket_may_send_many_messages_at_once(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    async with connections(server, 1) as [(reader, writer)]:
        writer.write(HANDSHAKE)
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        messages = [{"type": "generate", "id": str(number), "prompt": "a"} for number in range(MANY)]
        writer.write(b"".join(frame(TEXT, json.dumps(message).encode()) for message in messages))
        assert 0 < await most_in_a_turn(engine.submitted, MANY) <= MOST


async def test_the_lanes_of_a_socket_may_go_on_together(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    async with connections(server, 1) as [(reader, writer)]:
        writer.write(HANDSHAKE.replace(b"/v1/stream", b"/v1/responses"))
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        lanes = [
            {"type": "response.create", "stream_id": str(number), "input": "a", "store": False}
            for number in range(MANY)
        ]
        for _ in range(2):
            writer.write(b"".join(frame(TEXT, json.dumps(lane).encode()) for lane in lanes))
        await eventually(lambda: len(engine.submitted) == MANY)
        await eventually(lambda: all(stream.is_awaited for stream in engine.submitted))
        # Counted is where one may begin: on a busy machine the thread of the store, which a response waits for next,
        # answers many of them between two turns.
        begun, wait_for_turn = list[str](), server.served.turns.next

        async def note(owner: str = "") -> None:
            await wait_for_turn(owner)
            begun.append(owner)

        monkeypatch.setattr(server.served.turns, "next", note)
        for stream in list(engine.running.values()):
            stream.step()
            stream.finish("stop")
        assert 0 < await most_in_a_turn(begun, MANY) <= MOST
        await eventually(lambda: len(engine.submitted) == 2 * MANY)


@pytest.mark.parametrize("path", [b"/v1/stream", b"/v1/responses"])
@pytest.mark.parametrize(
    ("code", "data"),
    [(PING, b""), (PONG, b""), (BINARY, b""), (TEXT, b"{}"), (TEXT, b"")],
    ids=["pings", "pongs", "binary", "texts", "empty texts"],
)
async def test_small_frames_give_the_loop_its_turns(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, path: bytes, code: int, data: bytes
) -> None:
    turn, read_at, obeyed_at = 0, list[int](), list[int]()
    receive_data = Connection.data_received

    def note_data(connection: Connection, data: bytes) -> None:
        read_at.append(turn)
        receive_data(connection, data)

    def noting(receive: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
        async def note_message(calls: Any, text: str) -> None:
            if "last" in text:
                obeyed_at.append(turn)
            await receive(calls, text)

        return note_message

    for kind in (GenerationSocket, ResponseSocket):
        monkeypatch.setattr(kind, "receive", noting(kind.receive))
    async with connections(server, 1) as [(reader, writer)]:
        writer.write(HANDSHAKE.replace(b"/v1/stream", path))
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        monkeypatch.setattr(Connection, "data_received", note_data)
        writer.write(frame(code, data) * (10 * MANY) + frame(TEXT, b'"last"'))
        async with asyncio.timeout(PATIENCE_S):
            while not obeyed_at:
                await asyncio.sleep(0)
                turn += 1
                reader._buffer.clear()  # type: ignore[attr-defined] - the client reads, and so the server may write
    assert obeyed_at[0] - read_at[0] >= 10 * MANY // BEGUN_AT_ONCE


@pytest.mark.parametrize(("path", "parameter"), [("/v1/completions", "prompt"), ("/v1/embeddings", "input")])
async def test_those_who_wait_for_a_model_do_not_all_begin_when_it_comes(
    monkeypatch: pytest.MonkeyPatch, path: str, parameter: str
) -> None:
    async with several("a b", loads_at_once=False, models_max=2) as server:
        server.sources["a"].may_load.set()
        await server.reach(a="ready")
        engine = server.engine("b")
        embed = engine.embed

        def note_embedding(*args: Any, **options: Any) -> Any:
            engine.submitted.append(args[0])
            return embed(*args, **options)

        monkeypatch.setattr(engine, "embed", note_embedding)
        asking = [asyncio.create_task(server.post(path, {"model": "b", parameter: "a"})) for _ in range(60)]
        await eventually(lambda: server.served.admission_budget.num_requests == len(asking))
        server.sources["b"].may_load.set()
        assert 0 < await most_in_a_turn(engine.submitted, len(asking)) <= MOST
        assert {status for status, _ in await asyncio.gather(*asking)} == {200}
