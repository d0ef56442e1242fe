"""One client's large or hostile bodies, and long prompts' logprobs, do not hold up the others."""

from __future__ import annotations

import asyncio
import io
import json
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from server.admission.workers import Workers
from server.api import encoding
from server.api.route import StreamWriter
from server.generation.generation import Generation
from server.generation.output_sequence import Delta
from server.streams.stream import Stream
from tests.fakes.engine_client import FakeEngineClient
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.support.socket_client import open_socket, read_to_end, send

MOST_S = 1.0  # without the bounds these bodies take seconds


class Ticker:
    """The longest time for which the loop stood, in processor time of this process: others do not count."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def tick(self) -> None:
        before = time.process_time()
        while True:
            await asyncio.sleep(0.001)
            now = time.process_time()
            self.longest = max(self.longest, now - before)
            before = now


@asynccontextmanager
async def ticking():
    ticker = Ticker()
    task = asyncio.create_task(ticker.tick())
    await asyncio.sleep(0.01)
    try:
        yield ticker
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _calls(name: str) -> bytes:
    """A conversation whose calls of tools have arguments with 400,000 lists together, 10,000 in each."""
    arguments = json.dumps({"a": [[]] * 10_000}, separators=(",", ":"))
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "assistant", "tool_calls": [call] * 4}] * 10
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}
    return json.dumps({name: messages if name == "messages" else [item] * 40}).encode()


BODIES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "numbers as messages": ("/v1/chat/completions", lambda: b'{"messages":[' + b",".join([b"1"] * 2_000_000) + b"]}"),
    "lists as a prompt": ("/v1/completions", lambda: b'{"prompt":[' + b",".join([b"[]"] * 900_000) + b"]}"),
    "unknown names": ("/v1/completions", lambda: json.dumps({f"k{n}": 1 for n in range(100_000)}).encode()),
    "deep": ("/v1/completions", lambda: b'{"prompt":' + b"[" * 4_000_000),
    "messages with errors": (
        "/v1/chat/completions",
        lambda: json.dumps({"messages": [{"role": "user", "content": 5}] * 4096}).encode(),
    ),
    "numbers": ("/v1/completions", lambda: b'{"prompt":[' + b",".join([b"1"] * 500_000) + b"]}"),
    "lists in arguments": ("/v1/chat/completions", lambda: _calls("messages")),
    "lists in arguments to tokenize": ("/tokenize", lambda: _calls("messages")),
    "lists in arguments of items": ("/v1/responses", lambda: _calls("input")),
    "brackets in a text": ("/v1/completions", lambda: b'{"prompt":"' + b"[," * 2_000_000 + b'"}'),
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_hostile_body_does_not_stop_the_loop(server: RunningServer, name: str) -> None:
    path, make = BODIES[name]
    body = make()
    async with ticking() as ticker, server.http.post(server.url + path, data=io.BytesIO(body)) as response:
        status, answer = response.status, await response.json()
    sys.stderr.write(f"{name}: {len(body)} bytes, the loop stood {1e3 * ticker.longest:.0f} ms\n")
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert ticker.longest < MOST_S


async def test_a_hostile_frame_does_not_stop_the_loop(server: RunningServer) -> None:
    frame = '{"type":"generate","id":"a","prompt":[' + ",".join(["[]"] * 900_000) + "]}"
    async with open_socket(server) as socket, ticking() as ticker:
        await socket.send(frame)
        error = json.loads(await socket.recv())
        assert (error["type"], error["error"]["code"]) == ("error", "too_many_values")
        await send(socket, type="generate", id="b", prompt="x" * 70_000)
        assert (await read_to_end(socket, "b"))[-1]["type"] == "error"  # too long for the model
    assert ticker.longest < MOST_S


async def test_a_long_prompts_logprobs_are_encoded_in_a_worker(start_server: StartServer, monkeypatch) -> None:
    server = await start_server(FakeEngineClient(max_model_len=4096))
    body = {"prompt": [7] * 3000, "prompt_logprobs": 20, "max_tokens": 1}
    in_worker = await server.stream_bytes("/v1/completions", {**body, "request_id": "r"})
    monkeypatch.setattr(encoding, "MAX_INLINE_LOGPROBS", 10**9)
    inline = await server.stream_bytes("/v1/completions", {**body, "request_id": "r"})
    assert without_time(in_worker) == without_time(inline)
    assert in_worker.count(b'"rank":7') >= 2999


def without_time(stream: bytes) -> bytes:
    return re.sub(rb'"created":\d+', b"", stream)


async def test_the_encoding_of_a_long_prompt_leaves_the_loop_free() -> None:
    may_end = threading.Event()

    class Writer(StreamWriter):
        def encode(self, deltas):
            assert may_end.wait(PATIENCE_S)  # for ever, if the loop had to do it
            return [b"a"]

        def end(self):
            return []

    class LongPrompt:
        """A generation that has only the log probabilities of its prompt."""

        async def __aiter__(self):
            yield [Delta(0, "", [], None, prompt_logprobs=[None] * 1000)]

        async def push(self, sink):
            pass

    class Written(Stream):
        def __init__(self):
            self.events = []

        async def write(self, events):
            self.events += events

        def sink(self, encode):
            return None

    workers, stream = Workers(), Written()
    encoded = asyncio.create_task(encoding.write_deltas(stream, cast(Generation, LongPrompt()), Writer(), workers))
    await asyncio.sleep(0.01)
    may_end.set()
    await encoded
    assert stream.events == [b"a"]
    workers.close()


async def test_bodies_in_preparation_have_a_budget(start_server: StartServer) -> None:
    server = await start_server(max_preparing_bytes=100_000)
    port = int(server.url.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90000\r\n\r\n"
    writer.write(head)
    assert (await server.post("/v1/completions", {"prompt": "x" * 300}))[0] == 200  # nothing has come of the other
    writer.write(b'{"prompt":"' + b"x" * 80_000)
    await eventually(lambda: server.served.admission_budget.num_bytes > 80_000)
    async with server.http.post(server.url + "/v1/completions", json={"prompt": "x" * 30_000}) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "1")
        assert (await response.json())["error"]["code"] == "too_much_in_preparation"
    async with open_socket(server) as socket:
        await send(socket, type="generate", id="a", prompt="x" * 30_000)
        error = (await read_to_end(socket, "a"))[-1]["error"]
        assert error["code"] == "too_much_in_preparation"
    writer.transport.abort()
    await eventually(lambda: server.served.admission_budget.num_bytes == 0)
    assert (await server.post("/v1/completions", {"prompt": "x" * 300}))[0] == 200
    assert server.served.admission_budget.num_requests == 0


async def test_a_running_stream_is_no_longer_in_preparation(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, max_preparing_requests=1)
    asking = [asyncio.create_task(server.stream_bytes("/v1/completions", {"prompt": "ab"})) for _ in range(3)]
    await eventually(lambda: len(engine.running) == 3)
    assert (server.served.admission_budget.num_requests, server.served.admission_budget.num_bytes) == (0, 0)
    engine.step(5)
    await asyncio.gather(*asking)
