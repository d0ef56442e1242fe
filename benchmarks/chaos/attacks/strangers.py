"""Attacks that need no key: bodies that unpack to much, bodies that nobody wants, and crowds of connections."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import resource
import zlib

from benchmarks.chaos.target import KEY, Target

_CROWD = 150  # connections of one attacker; there are two dozen attackers
_PATIENCE = 20.0  # seconds for an answer
_ROUTES = (
    ("POST", "/v1/completions"), ("POST", "/v1/none"), ("GET", "/liveness"), ("GET", "/v1/models"),
    ("PUT", "/liveness"), ("POST", "/admin/pause"), ("GET", "/v1/stream"),
)  # fmt: skip
_REFUSED = (200, 400, 401, 403, 404, 405, 413, 415, 426, 429)


def _bomb(megabytes: int) -> bytes:
    packer, zeros = zlib.compressobj(9, zlib.DEFLATED, 31), bytes(1 << 20)
    return b"".join(packer.compress(zeros) for _ in range(megabytes)) + packer.flush()


_BOMBS = [_bomb(256), gzip.compress(b"") * 10_000, gzip.compress(_bomb(64))]
_CODINGS = ("gzip", "deflate", "gzip, gzip", "br", "GZIP")
_ENDLESS = b"1000\r\n" + b"x" * 0x1000 + b"\r\n"


async def compression_bomb(target: Target) -> None:
    """A small body that unpacks to hundreds of megabytes, with or without a key, whole or in chunks."""
    method, path = target.draw.choice(_ROUTES)
    body, key = target.draw.choice(_BOMBS), KEY if target.draw.random() < 0.3 else "wrong-key"
    coding = target.draw.choice(_CODINGS)
    head = [f"Authorization: Bearer {key}", f"Content-Encoding: {coding}"]
    if target.draw.random() < 0.3:
        head.append("Transfer-Encoding: chunked")
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    else:
        head.append(f"Content-Length: {len(body)}")
    await _exchange(target, "compression bomb", _head(target, method, path, *head) + body)


async def unwanted_body(target: Target) -> None:
    """A long or endless body that is refused by its head, and requests behind it."""
    method, path = target.draw.choice(_ROUTES)
    framing = target.draw.choice(["Content-Length: 1000000000", "Transfer-Encoding: chunked"])
    expects = ("Expect: 100-continue",) if target.draw.random() < 0.3 else ()
    head = _head(target, method, path, "Authorization: Bearer wrong-key", framing, *expects)
    await _exchange(target, "unwanted body", head, _ENDLESS if "chunked" in framing else b"x" * 0x1000)


async def silent_crowd(target: Target) -> None:
    """Many connections that say nothing, or send a byte now and then, and a probe among them."""
    begins = target.draw.choice([b"", b"GET / HTTP/1.1\r\nX-Slow: ", _head(target, "GET", "/liveness")])
    writers = []
    try:
        for _ in range(_CROWD):
            _, writer = await target.connect()
            writer.write(begins)
            writers.append(writer)
        for _ in range(2):
            await target.ask("silent crowd", "GET", "/liveness", (200,))
            await asyncio.sleep(target.draw.random())
            for writer in writers:
                writer.write(b"a" if begins else b"")
    except OSError as error:
        target.ledger.note("silent crowd", type(error).__name__)
    finally:
        for writer in writers:
            writer.transport.abort()


async def reconnecting_crowd(target: Target) -> None:
    """Strangers who connect, say something or nothing, leave or are closed, and connect again; a probe among them."""
    says = (b"", b"GET / HTTP/1.1\r\nX-Slow: ", b"\0\xff\r\n\r\n", _head(target, "GET", "/v1/models"))

    async def stranger() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await target.connect()
                try:
                    writer.write(target.draw.choice(says))
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(reader.read(), target.draw.random())
                finally:
                    writer.transport.abort()

    crowd = [asyncio.create_task(stranger()) for _ in range(_CROWD)]
    try:
        for _ in range(4):
            await target.ask("reconnecting crowd", "GET", "/liveness", (200,))
            await target.ask("reconnecting crowd", "GET", "/v1/models", (200,))  # with a key
            await asyncio.sleep(target.draw.random())
    finally:
        for each in crowd:
            each.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)


def raise_file_limit() -> None:
    """So that the attackers' process may have crowds of connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _head(target: Target, method: str, path: str, *lines: str) -> bytes:
    host, port = target.address
    return "\r\n".join((f"{method} {path} HTTP/1.1", f"Host: {host}:{port}", *lines)).encode() + b"\r\n\r\n"


async def _exchange(target: Target, attack: str, request: bytes, endless: bytes = b"") -> None:
    """Sends a request and goes on sending `endless`; the server must answer, and must end what goes on."""
    reader, writer = await target.connect()

    async def send() -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(request)
            await writer.drain()
            while endless:
                writer.write(endless)
                await writer.drain()
                await asyncio.sleep(0.01)

    sending = asyncio.create_task(send())
    try:
        async with asyncio.timeout(_PATIENCE):
            answer = await reader.readuntil(b"\r\n\r\n")
            if answer.startswith(b"HTTP/1.1 100 "):
                answer = await reader.readuntil(b"\r\n\r\n")
            target.ledger.note_status(attack, int(answer[9:12]), _REFUSED)
            if endless:
                await sending
    except (ConnectionError, asyncio.IncompleteReadError):
        target.ledger.note(attack, "closed")
    except TimeoutError:
        target.ledger.note(attack, "left")
    finally:
        sending.cancel()
        writer.transport.abort()
