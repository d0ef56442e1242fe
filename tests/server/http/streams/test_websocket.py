"""How WebSockets are opened and closed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from server.http.websocket import OPEN_SOCKETS, SLACK_BYTES
from tests.fakes.engine_client import FakeEngineClient
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.http.streams.test_websocket_fuzz import HANDSHAKE, TEXT, frame
from tests.server.support.socket_client import open_socket, read_to_end, receive, send


async def fragments(num_bytes: int) -> AsyncIterator[str]:
    for _ in range(num_bytes // 1000):
        yield "x" * 1000


@pytest.mark.parametrize("make", [lambda length: "x" * length, fragments])
async def test_a_message_over_the_limit_is_refused_and_one_far_over_it_closes_the_socket(
    start_server: StartServer, make: Callable[[int], str | AsyncIterator[str]]
) -> None:
    server = await start_server(max_body_bytes=2000)
    async with open_socket(server) as socket:
        await socket.send(make(SLACK_BYTES))
        assert (await receive(socket))["error"]["code"] == "body_too_large"
        with contextlib.suppress(ConnectionClosed):
            await socket.send(make(20 * SLACK_BYTES))
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


async def test_a_frame_is_refused_by_the_length_that_it_announces(start_server: StartServer) -> None:
    server = await start_server(max_body_bytes=2000)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    writer.write(HANDSHAKE)
    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
    writer.write(frame(TEXT, b"", length=3000 + SLACK_BYTES))
    answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    assert answer[0] == 0x88  # a closing frame
    assert int.from_bytes(answer[2:4], "big") == 1009
    writer.close()


async def test_origins(start_server: StartServer) -> None:
    server = await start_server(allowed_origins=("https://friend.example",))
    for origin in (None, server.url, "https://friend.example"):
        async with open_socket(server, origin=origin) as socket:
            await send(socket, type="generate", id="a", prompt="x")
            assert (await read_to_end(socket, "a"))[-1]["type"] == "done"
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "http://["):
        with pytest.raises(InvalidStatus) as refused:
            async with open_socket(server, origin=origin):
                pass
        assert refused.value.response.status_code == 403
        assert json.loads(refused.value.response.body)["error"]["code"] == "origin_not_allowed"


async def test_a_plain_get_is_told_that_it_is_a_websocket(server: RunningServer) -> None:
    async with server.http.get(server.url + "/v1/stream") as response:
        assert (response.status, response.headers["Upgrade"]) == (426, "websocket")
        error = (await response.json())["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, "upgrade_required")
    assert "is a WebSocket" in error["message"]
    assert (await server.get("/version"))[0] == 200  # on the same connection


async def test_closing_the_socket_aborts_all(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    async with open_socket(server) as socket:
        for number in range(5):
            await send(socket, type="generate", id=str(number), prompt="x", n=2)
        await eventually(lambda: len(engine.running) == 10)
        socket.transport.abort()
        await server.assert_all_streams_ended()
    assert len(engine.aborted) == 10
    await eventually(lambda: not server.app[OPEN_SOCKETS])
