"""What has ended goes when its last user does, without a garbage collection."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
from asyncio.selector_events import _SelectorSocketTransport  # type: ignore[attr-defined]
from collections.abc import Iterator

import pytest
from aiohttp import WSMessage, web
from aiohttp.web_urldispatcher import MatchInfoError

from server.transport.fair_socket import FairSocket
from server.transport.http_errors import Connection
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer, eventually

KINDS = (Connection, FairSocket, MatchInfoError, WSMessage, web.Request, _SelectorSocketTransport)
UPGRADE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
PING = b"\x89\x80\0\0\0\0"
CLOSE = b"\x88\x82\0\0\0\0\x03\xe8"
BODY = b'{"prompt":"a","max_tokens":2,"stream":true}'
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
STREAM = POST % (len(BODY), BODY)
LAST = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

# what is sent first, what behind the first bytes of the answer, and whether the client leaves with a reset
CLIENTS: dict[str, tuple[bytes, bytes, bool]] = {
    "a stream that is read": (STREAM, b"", False),
    "a stream that is cut": (STREAM, b"", True),
    "a client that is refused": (POST % (2, b"{}"), b"", False),
    "a path that is not there": (b"GET /v1/none" + LAST, b"", False),
    "a method that is not there": (b"PATCH /v1/completions" + LAST, b"", False),
    "no HTTP": (b"\0" * 100 + b"\r\n\r\n", b"", False),
    "HTTPS": (b"\x16\x03\x01\x02\x00\r\n\r\n", b"", False),
    "a socket that is closed": (UPGRADE, CLOSE, False),
    "a socket that is cut": (UPGRADE, b"", True),
    "a socket with a wrong frame": (UPGRADE, b"\x83\x80\0\0\0\0", False),
    "a socket with a wrong frame that is cut": (UPGRADE, b"\x83\x80\0\0\0\0", True),
    "a socket with frames behind a wrong one": (UPGRADE, PING * 500 + b"\x81\x82\0\0\0\0\xff\xfe" + PING * 500, True),
}


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def visit(port: int, first: bytes, then: bytes, with_reset: bool) -> None:
    """A client whose end leaves nothing of asyncio's in this process."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
        client.sendall(first)
        assert client.recv(10)
        client.sendall(then)
        if with_reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            client.shutdown(socket.SHUT_WR)
            while client.recv(4096):
                pass


def kept() -> list[str]:
    return sorted(type(thing).__name__ for thing in gc.get_objects() if type(thing) in KINDS)


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("client", CLIENTS)
async def test_nothing_is_left_to_a_garbage_collection(start_server: StartServer, client: str) -> None:
    server: RunningServer = await start_server()
    before = kept()
    for _ in range(3):
        await asyncio.to_thread(visit, int(server.url.rpartition(":")[2]), *CLIENTS[client])
    await eventually(lambda: kept() == before)
