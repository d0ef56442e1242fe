"""What has ended goes when its last user does, without a garbage collection."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import logging
import socket
import ssl
import struct
from asyncio.selector_events import _SelectorSocketTransport  # type: ignore[attr-defined]
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

import pytest
from aiohttp import WSMessage, web
from aiohttp.web_urldispatcher import MatchInfoError, SystemRoute

from server.http.accepting.connection_places import Place
from server.http.transport.aiohttp_internals import PRIVATE_NAMES, untie_error
from server.http.transport.http_errors import Connection
from server.http.transport.web_socket import FairSocket
from tests.fakes.engine_client import FakeEngineClient
from tests.patience import PATIENCE_S
from tests.server.admission.test_certificate import needs_openssl
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.http.transport.test_handshake import guarded

KINDS = (
    Connection, FairSocket, MatchInfoError, Place, SSLProtocol, SystemRoute, WSMessage, _SelectorSocketTransport,
    web.Request,
)  # fmt: skip
HOST = b" HTTP/1.1\r\nHost: localhost\r\n"
LAST = HOST + b"Connection: close\r\n"
UPGRADE = (
    b"GET /v1/stream" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
PING = b"\x89\x80\0\0\0\0"
LONG_PING = b"\x89\xfe\0\x80\0\0\0\0"  # a control frame has at most 125 bytes
CLOSE = b"\x88\x82\0\0\0\0\x03\xe8"
NO_TEXT = b"\x81\x82\0\0\0\0\xff\xfe"
BODY = b'{"prompt":"a","max_tokens":2,"stream":true}'


def post(path: bytes, body: bytes, length: int, *headers: bytes) -> bytes:
    return b"\r\n".join([b"POST " + path + LAST + b"Content-Length: %d" % length, *headers, b"", body])


STREAM = post(b"/v1/completions", BODY, len(BODY))


@dataclass(frozen=True)
class Client:
    """What a client sends, and how it ends the connection: by closing its sending half and reading on, by a reset, or
    by waiting until the server ends it.
    """

    first: bytes
    then: bytes = b""  # behind the first bytes of an answer
    ends: Literal["by closing", "by a reset", "never"] = "by closing"
    is_answered: bool = True

    def visit(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        """A visit that leaves nothing of asyncio's in this process."""
        with contextlib.ExitStack() as stack, contextlib.suppress(ConnectionResetError):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
            if tls is not None:
                peer = stack.enter_context(tls.wrap_socket(peer))
            peer.sendall(self.first)
            assert not self.is_answered or peer.recv(10)
            peer.sendall(self.then)
            if self.ends == "by a reset":
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            if self.ends == "by closing":
                peer.shutdown(socket.SHUT_WR)
            while peer.recv(4096):
                pass


CLIENTS = {
    "a stream that is read": Client(STREAM),
    "a stream that is cut": Client(STREAM, ends="by a reset"),
    "a body that is refused": Client(post(b"/v1/completions", b"{}", 2)),
    "a body that does not come": Client(post(b"/v1/completions", b"{", 100), ends="by a reset", is_answered=False),
    "a body that nobody reads": Client(post(b"/v1/none", b"{", 100), ends="by a reset"),
    "a body that is too large": Client(post(b"/v1/completions", b"{", 1 << 40), ends="by a reset"),
    "a body that is no gzip": Client(post(b"/v1/completions", b"x" * 10, 10, b"Content-Encoding: gzip")),
    "a path that is not there": Client(b"GET /v1/none" + LAST + b"\r\n"),
    "a method that is not there": Client(b"PATCH /v1/completions" + LAST + b"\r\n"),
    "a connection that falls silent": Client(b"GET /liveness" + HOST + b"\r\n", ends="never", is_answered=False),
    "no HTTP": Client(b"\0" * 100 + b"\r\n\r\n"),
    "HTTPS": Client(b"\x16\x03\x01\x02\x00\r\n\r\n"),
    "a socket that is closed": Client(UPGRADE, CLOSE),
    "a socket that is cut": Client(UPGRADE, ends="by a reset"),
    "a socket with a long ping": Client(UPGRADE, LONG_PING),
    "a socket with a long ping that is cut": Client(UPGRADE, LONG_PING, "by a reset"),
    "a socket with unread frames": Client(UPGRADE, PING * 500 + NO_TEXT + PING * 500, "by a reset"),
}


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # what other tests have left may be millions of objects, among which `kept` would look again and again
    gc.disable()
    yield
    gc.enable()


def port_of(server: RunningServer) -> int:
    return int(server.url.rpartition(":")[2])


def kept() -> Counter[str]:
    return Counter(type(thing).__name__ for thing in gc.get_objects() if type(thing) in KINDS)


async def visit_often(client: Client, port: int, tls: ssl.SSLContext | None = None) -> None:
    """Fails where something of three visits is kept."""
    before = kept()
    for _ in range(3):
        await asyncio.to_thread(client.visit, port, tls)
    left: Counter[str] = Counter()

    def is_free() -> bool:
        nonlocal left
        left = kept() - before
        return not left

    try:
        await eventually(is_free)
    except TimeoutError:
        pytest.fail(f"{left} are kept")


@pytest.mark.parametrize("name", CLIENTS)
async def test_nothing_is_left_to_a_garbage_collection(
    start_server: StartServer, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    caplog.set_level(logging.CRITICAL, "aiohttp.server")  # pytest would keep the errors that are logged
    # No ping, and no check of those who have left, may come to the rescue.
    client = CLIENTS[name]
    server = await start_server(
        ping_interval=100 * PATIENCE_S, keep_alive_timeout=0.5 if client.ends == "never" else 100 * PATIENCE_S
    )
    await visit_often(client, port_of(server))


async def test_nothing_is_left_of_connections_that_made_room(start_server: StartServer) -> None:
    server, before = await start_server(max_connections=1), kept()
    with contextlib.ExitStack() as ending:
        for _ in range(5):
            peer = ending.enter_context(socket.create_connection(("127.0.0.1", port_of(server))))
            peer.sendall(b"GET / HTTP/1.1\r\n")
            await asyncio.sleep(0.01)
        await eventually(lambda: (kept() - before)["Connection"] == 1)
    await eventually(lambda: not kept() - before)


async def test_nothing_is_left_of_a_connection_too_many(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(is_manual=True), max_connections=1)
    with socket.create_connection(("127.0.0.1", port_of(server))) as busy:
        busy.sendall(STREAM)
        await eventually(lambda: len(server.engine.running) == 1)
        await visit_often(Client(b"GET /v1/models" + LAST + b"\r\n"), port_of(server))
        await visit_often(Client(b"", ends="never", is_answered=False), port_of(server))


@needs_openssl
@pytest.mark.parametrize("ends", ["by closing", "by a reset"])
async def test_nothing_is_left_of_a_connection_over_tls(
    tmp_path: Path, ends: Literal["by closing", "by a reset"]
) -> None:
    context = ssl._create_unverified_context()
    async with guarded(tmp_path) as port:
        await visit_often(Client(b"GET /" + LAST + b"\r\n", ends=ends), port, context)


@needs_openssl
async def test_nothing_is_left_of_a_handshake_that_fails(tmp_path: Path) -> None:
    async with guarded(tmp_path) as port:
        await visit_often(Client(b"GET /" + LAST + b"\r\n", is_answered=False), port)


def test_an_error_is_untied_with_those_that_caused_it() -> None:
    def fail() -> None:
        try:
            raise KeyError("the cause")
        except KeyError as cause:
            raise ValueError("the error") from cause

    with pytest.raises(ValueError, match="the error") as caught:
        fail()
    error = caught.value
    assert error.__cause__ is not None
    error.__cause__.__context__ = error  # errors may go round
    untie_error(error)
    assert error.__traceback__ is None
    assert error.__cause__.__traceback__ is None


@pytest.mark.parametrize(("owner", "name"), PRIVATE_NAMES)
def test_private_names_are_still_there(owner: str, name: str) -> None:
    """A name that this version lacks: `PRIVATE_NAMES` says what to do."""
    module, _, kind = owner.partition(":")
    found = getattr(import_module(module), kind)
    slots = {slot for base in found.__mro__ for slot in getattr(base, "__slots__", ())}
    if hasattr(found, name):  # a compiled class has no source
        return
    source = "".join(inspect.getsource(base) for base in found.__mro__[:-1] if base.__module__.startswith(module[:7]))
    assert name in slots or f"self.{name}" in source or f" {name}:" in source, (
        f"{owner} has no {name} any more; {PRIVATE_NAMES[owner, name]}"
    )
