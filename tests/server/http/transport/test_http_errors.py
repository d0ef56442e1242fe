"""What is no valid request gets an error in JSON, whoever has found it out."""

from __future__ import annotations

import asyncio
import json
import zlib
from typing import Any

import pytest

from server.http.transport.http_errors import Connection
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer

# A body that was read whole leaves its connection open, unless the client says otherwise.
CLOSE = b"Connection: close\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
BODY = b'{"prompt":"a"}'

# what is sent, status, code, what the message must name
REFUSED: dict[str, tuple[bytes, int, str, str]] = {
    "no HTTP": (b"\x00\x01\x02 what\r\n\r\n", 400, "invalid_http", "not valid HTTP"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400, "invalid_http", "HTTPS traffic"),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "invalid_http", "not valid HTTP"),
    "a long target": (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", 431, "head_too_large", "8190 bytes"),
    "a long header": (POST + b"X: " + b"a" * 20_000 + b"\r\n\r\n", 431, "head_too_large", "8190 bytes"),
    "many headers": (POST + b"X: a\r\n" * 500 + b"\r\n", 400, "invalid_http", "Too many headers"),
    "two lengths": (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}", 400, "invalid_http", "not valid HTTP"),
    "a negative length": (POST + b"Content-Length: -1\r\n\r\n", 400, "invalid_http", "not valid HTTP"),
    "length and chunks": (
        POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "invalid_http", "not valid",
    ),
    "a header without a colon": (POST + b"nonsense\r\n\r\n", 400, "invalid_http", "not valid HTTP"),
    "a control character": (POST + b"X: a\x00b\r\n\r\n", 400, "invalid_http", "not valid HTTP"),
    "chunks that are none": (POST + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n", 400, "invalid_http", "HTTP"),
    "a chunk that goes on": (
        POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}nonsense\r\n", 400, "invalid_http", "HTTP",
    ),
    "brotli": (
        POST + CLOSE + b"Content-Encoding: br\r\nContent-Length: 14\r\n\r\n" + BODY,
        415, "unsupported_encoding", '"br"',
    ),
    "zstd": (
        POST + CLOSE + b"Content-Encoding: zstd\r\nContent-Length: 14\r\n\r\n" + BODY,
        415, "unsupported_encoding", '"zstd"',
    ),
    "no gzip": (
        POST + b"Content-Encoding: gzip\r\nContent-Length: 14\r\n\r\n" + BODY, 400, "invalid_encoding", "gzip",
    ),
    "a deflated body that is cut off": (
        POST + b"Content-Encoding: deflate\r\nContent-Length: 12\r\n\r\n" + zlib.compress(BODY)[:12],
        400, "invalid_encoding", "deflate",
    ),
    "an expectation": (
        POST + b"Expect: miracles\r\nContent-Length: 14\r\n\r\n" + 14 * b"x", 417, "unknown_expectation", "miracles",
    ),
}  # fmt: skip


async def ask(server: RunningServer, data: bytes) -> tuple[int, str, Any]:
    """Status, head and body of the answer; the connection must end by itself."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    writer.write(data)
    async with asyncio.timeout(PATIENCE_S):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        body = await reader.readexactly(length)
        assert await reader.read(1) == b""
    writer.close()
    return int(head.split()[1]), head, json.loads(body)


@pytest.mark.parametrize("is_early", [False, True], ids=["while it is read", "before its handler begins"])
async def test_a_body_that_comes_apart_from_its_head_is_refused_when_it_ends(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, is_early: bool
) -> None:
    server = await start_server(body_timeout=10 * PATIENCE_S)  # so that the deadline of bodies does not end it
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    body = zlib.compress(BODY)[:2]  # from which nothing can be decoded: there is nothing to read but the end
    head = POST + b"Content-Encoding: deflate\r\nContent-Length: 2\r\n\r\n"
    receive = Connection.data_received

    def receive_and_send(connection: Connection, data: bytes) -> None:
        receive(connection, data)
        if is_early and data == head:
            writer.write(body)  # is there when the loop looks next; the handler begins a turn later

    monkeypatch.setattr(Connection, "data_received", receive_and_send)
    writer.write(head)
    if not is_early:
        await asyncio.sleep(0.05)
        writer.write(body)
    async with asyncio.timeout(PATIENCE_S):
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_encoding"
    writer.close()


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_no_request_is_refused_in_json(server: RunningServer, name: str) -> None:
    data, status, code, words = REFUSED[name]
    got_status, head, answer = await ask(server, data)
    error = answer["error"]
    assert (got_status, error["code"]) == (status, code), error
    assert "content-type: application/json" in head
    assert "x-request-id: " in head
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]
    assert len(error["message"]) < 200
