"""What a request has sent is given back with its answer, and not first by a garbage collection.

The collector of a server runs seldom (server/cli/memory.py), so what only it could free would add up.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import orjson
import pytest

from tests.server.conftest import RunningServer, StartServer, eventually

Send = Callable[[RunningServer], Awaitable[None]]
NUM_BODIES = 6
BODY_BYTES = 512 << 10


def posted(body: bytes, status: int) -> Send:
    async def send(server: RunningServer) -> None:
        assert (await server.post_raw("/v1/completions", body))[0] == status

    return send


def as_message(body: bytes, code: str) -> Send:
    async def send(server: RunningServer) -> None:
        async with server.http.ws_connect(server.url + "/v1/stream") as socket:
            await socket.send_str(body.decode())
            answer = await socket.receive_json()
            assert answer["error"]["code"] == code, answer

    return send


async def too_large(server: RunningServer) -> None:
    """In pieces, so that the server learns of the size only by reading."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(BODY_BYTES // 65536 + 1):
            yield b"x" * 65536

    async with server.http.post(server.url + "/v1/completions", data=pieces()) as response:
        assert response.status == 413


SENDINGS: dict[str, Send] = {
    "too large": too_large,
    "not JSON": posted(b"[" + b" " * (BODY_BYTES - 8), 400),
    "too many values": posted(b"[" + b"[]," * (BODY_BYTES // 3 - 8) + b"1]", 400),
    "a wrong field": posted(orjson.dumps({"prompt": "a", "stop": ["x"] * (BODY_BYTES // 5)}), 400),
    "a message that is not JSON": as_message(b"[" + b" " * (BODY_BYTES - 8), "invalid_json"),
    "a message with a wrong field": as_message(
        orjson.dumps({"type": "generate", "id": "a", "prompt": "a", "stop": ["x"] * (BODY_BYTES // 5)}), "invalid_value"
    ),
}


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("sending", SENDINGS)
async def test_a_refused_body_is_given_back(sending: str, start_server: StartServer) -> None:
    server = await start_server(max_body_bytes=BODY_BYTES)
    send = SENDINGS[sending]
    tracemalloc.start()
    try:
        await send(server)
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(NUM_BODIES):
            await send(server)
        # A worker thread may let go of the last body a moment after the answer.
        await eventually(lambda: tracemalloc.get_traced_memory()[0] - before < BODY_BYTES)
    finally:
        tracemalloc.stop()
