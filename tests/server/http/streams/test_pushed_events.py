"""Pushed events on the wire: each response is whole, whatever its connection does besides."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import orjson

from tests.fakes.engine_client import FakeEngineClient
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer, eventually

BODY: dict[str, Any] = {"prompt": "tide over END and more", "stop": ["END"], "max_tokens": 40, "stream": True}


def request(version: str, **more: Any) -> bytes:
    body = orjson.dumps({**BODY, **more})
    head = f"POST /v1/completions HTTP/{version}\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def connect(server: RunningServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return await asyncio.open_connection(host, int(port))


async def read_chunked(reader: asyncio.StreamReader) -> bytes:
    """The body of one chunked response, after its headers."""
    assert b"chunked" in await reader.readuntil(b"\r\n\r\n")
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += await reader.readexactly(size)
        assert await reader.readexactly(2) == b"\r\n"
    assert await reader.readexactly(2) == b"\r\n"
    return body


def text_of(body: bytes) -> str:
    events = [line.removeprefix(b"data: ") for line in body.split(b"\n") if line.startswith(b"data: {")]
    choices = [orjson.loads(event)["choices"][0] for event in events]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert body.endswith(b"data: [DONE]\n\n")
    assert body.count(b"[DONE]") == 1
    return "".join(choice["text"] for choice in choices)


async def test_pipelined_requests_have_one_whole_response_each(server: RunningServer) -> None:
    reader, writer = await connect(server)
    writer.write(request("1.1") + request("1.1") + request("1.1", stop=[]))
    assert [text_of(await read_chunked(reader)) for _ in range(3)] == ["tide over "] * 2 + [BODY["prompt"]]
    writer.close()
    await writer.wait_closed()


async def test_a_client_without_chunks_gets_the_same_events(server: RunningServer) -> None:
    reader, writer = await connect(server)
    writer.write(request("1.0"))
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert text_of(body) == "tide over "
    writer.close()
    await writer.wait_closed()


async def test_a_stream_that_breaks_does_not_disturb_those_of_the_same_step(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    streams = [await connect(server) for _ in range(3)]
    for _, writer in streams:
        writer.write(request("1.1"))
    await eventually(lambda: len(engine.running) == 3)
    for letter in (b'"t"', b'"i"'):  # the first is read, and the next ones are pushed
        engine.step()
        for reader, _ in streams:
            await asyncio.wait_for(reader.readuntil(letter), PATIENCE_S)
    streams[1][1].transport.abort()
    engine.step(2)  # the server may not have noticed yet
    await eventually(lambda: len(engine.running) == 2)
    engine.step(30)
    for reader, writer in (streams[0], streams[2]):
        rest = await reader.readuntil(b"0\r\n\r\n")
        assert len(re.findall(rb'"finish_reason":"stop"', rest)) == 1
        assert rest.count(b"[DONE]") == 1
        writer.close()
        await writer.wait_closed()
