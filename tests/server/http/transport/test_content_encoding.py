"""Bodies that are encoded are decoded where they are wanted, within the limit, and never on the loop."""

from __future__ import annotations

import asyncio
import gzip
import threading
import zlib
from typing import Any

import pytest

from server.http.transport import http_errors
from server.http.transport.content_encoding import MAX_MEMBERS, DecodedTooLarge, InvalidEncoding, decode
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer

BODY = b'{"prompt":"a","max_tokens":1}'
RAW_DEFLATE = zlib.compressobj(wbits=-15)
KEY = b"client-key-1"


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (gzip.compress(BODY, mtime=0), "gzip"),
        (gzip.compress(BODY[:9], mtime=0) + gzip.compress(BODY[9:], mtime=0), "gzip"),
        (zlib.compress(BODY), "deflate"),
        (RAW_DEFLATE.compress(BODY) + RAW_DEFLATE.flush(), "deflate"),
    ],
    ids=["gzip", "members", "zlib", "raw deflate"],
)
def test_a_body_is_decoded(body: bytes, encoding: str) -> None:
    assert decode(body, encoding, len(BODY)) == BODY
    with pytest.raises(DecodedTooLarge):
        decode(body, encoding, len(BODY) - 1)
    with pytest.raises(InvalidEncoding):
        decode(body[:-1], encoding, len(BODY))


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (b"no gzip", "gzip"),
        (b"no deflate", "deflate"),
        (gzip.compress(BODY, mtime=0) + b"more", "gzip"),
        (zlib.compress(BODY) + b"more", "deflate"),
        (gzip.compress(b"", mtime=0) * (MAX_MEMBERS + 1), "gzip"),
    ],
)
def test_what_is_not_encoded_as_it_says_is_refused(body: bytes, encoding: str) -> None:
    with pytest.raises(InvalidEncoding):
        decode(body, encoding, 1 << 20)


def test_a_bomb_is_decoded_up_to_the_limit_only() -> None:
    with pytest.raises(DecodedTooLarge):
        decode(gzip.compress(bytes(64 << 20), mtime=0), "gzip", 1000)


class Decoders:
    """The threads in which zlib has made a decoder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[threading.Thread] = []
        made = zlib.decompressobj

        def make(*options: Any, **more: Any) -> Any:
            self.threads.append(threading.current_thread())
            return made(*options, **more)

        monkeypatch.setattr(zlib, "decompressobj", make)


@pytest.fixture
def decoders(monkeypatch: pytest.MonkeyPatch) -> Decoders:
    return Decoders(monkeypatch)


def request(method: bytes, path: bytes, body: bytes, *headers: bytes) -> bytes:
    head = [b"%b %b HTTP/1.1" % (method, path), b"Host: localhost", b"Content-Encoding: gzip", *headers]
    return b"\r\n".join([*head, b"Content-Length: %d" % len(body), b"", body])


async def ask(server: RunningServer, data: bytes) -> tuple[int, bytes]:
    """The status and the whole answer of a connection that the server must end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    writer.write(data)
    answer = b""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while piece := await reader.read(1 << 16):
                answer += piece
    except ConnectionError:
        pass  # what was not read ends a connection with a reset
    writer.transport.abort()
    return int(answer.split()[1]), answer


async def test_an_encoded_body_is_decoded_in_a_worker_thread(start_server: StartServer, decoders: Decoders) -> None:
    server = await start_server()
    body = gzip.compress(BODY, mtime=0)
    status, _ = await ask(server, request(b"POST", b"/v1/completions", body, b"Connection: close"))
    assert status == 200
    assert len(decoders.threads) == 1
    assert threading.main_thread() not in decoders.threads


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        (b"POST", b"/v1/completions", 401),
        (b"POST", b"/v1/none", 401),
        (b"GET", b"/liveness", 200),
        (b"GET", b"/v1/models", 401),
        (b"PATCH", b"/liveness", 405),
        (b"GET", b"/v1/stream", 401),
    ],
)
async def test_a_body_that_nobody_wants_is_neither_read_nor_decoded(
    start_server: StartServer,
    decoders: Decoders,
    monkeypatch: pytest.MonkeyPatch,
    method: bytes,
    path: bytes,
    status: int,
) -> None:
    monkeypatch.setattr(http_errors, "CLOSE_S", 0.1)
    server = await start_server(api_keys=(KEY.decode(),))
    data = request(method, path, gzip.compress(bytes(1 << 20), mtime=0) + bytes(4 << 20))  # most is still on its way
    answered, answer = await ask(server, data)
    assert answered == status
    assert b"connection: close" in answer.lower()
    assert decoders.threads == []


async def test_a_bomb_of_a_client_with_a_key_is_too_large(start_server: StartServer) -> None:
    server = await start_server(max_body_bytes=1 << 16)
    bomb = gzip.compress(bytes(16 << 20), mtime=0)
    status, answer = await ask(server, request(b"POST", b"/v1/completions", bomb, b"Connection: close"))
    assert status == 413
    assert b"body_too_large" in answer


async def test_a_connection_is_kept_over_a_short_body_that_nobody_wants(start_server: StartServer) -> None:
    server = await start_server(api_keys=(KEY.decode(),))
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(2):
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 401 ")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            writer.write(b"0123456789")
    writer.close()


async def test_a_body_without_an_end_that_nobody_wants_ends_its_connection(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_errors, "CLOSE_S", 0.1)
    server = await start_server(api_keys=(KEY.decode(),))
    _, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    writer.write(b"POST /v1/none HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                writer.write(b"5\r\nhello\r\n")
                await writer.drain()
                await asyncio.sleep(0.01)
    except ConnectionError:
        pass  # the server has ended it
    writer.close()
