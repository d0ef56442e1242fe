"""Random byte sequences for the fuzzer: HTTP requests and WebSocket frames, some right, most of them broken."""

from __future__ import annotations

import base64
import functools
import gzip
import random
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import orjson

from benchmarks.chaos.target import KEY

Ending = Literal["read", "half-close", "reset", "stall"]
Mutation = Callable[[random.Random, bytes], bytes]

MAX_PIECES = 400  # of one case, so that a long body is not sent byte by byte
_PATHS = (
    "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/tokenize",
    "/v1/models", "/liveness", "/readiness", "/metrics", "/openapi.json", "/", "/nowhere", "/admin/pause",
    "/v1/responses/resp_1", "/v1/conversations", "/v1/stream?x=%00", "*", "http://other.example/v1/models",
)  # fmt: skip
_HEADERS = (
    "Content-Encoding: gzip", "Content-Encoding: deflate", "Content-Encoding: br", "Content-Encoding: gzip, gzip",
    "Transfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: identity",
    "Transfer-Encoding: chunked, chunked", "Content-Length: 0", "Content-Length: -1", "Content-Length: +7",
    "Content-Length: 1e3", "Content-Length: 99999999999999999999", "Content-Length: 5, 5", "Content-Length: 0x10",
    "Expect: 100-continue", "Expect: something", "Connection: close", "Connection: keep-alive, Upgrade",
    "Upgrade: websocket", "Upgrade: h2c", "Sec-WebSocket-Version: 8", "Sec-WebSocket-Key: short", "Host: ",
    "Host: a, b", "X-Forwarded-For: 10.0.0.1", "Origin: null", "Cookie: a=b; a=c", "Range: bytes=0-9999999999",
    "Accept: text/event-stream", "Last-Event-ID: 18446744073709551616", "traceparent: 00-0-0-0", "X: a\r\n folded",
    "X : space", "\tX: tab", "X", ": empty", "X: \x00", "X: \xff\xfe", f"Y: {'y' * 9000}", "TE: trailers",
    "Content-Type: multipart/form-data; boundary=x", "Content-Type: application/json; charset=utf-7",
    "If-None-Match: *", "Authorization: Basic Og==", "Authorization: Bearer", "x-api-key: \xe9",
)  # fmt: skip
_TOKENS = (
    b"\r\n", b"\n", b"\r", b"\0", b"\r\n\r\n", b"0\r\n\r\n", b"ffffffffffffffff\r\n", b"5;x=y\r\n", b"-1\r\n",
    b" HTTP/1.0", b"HTTP/2.0", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"{", b"[" * 300, b'"', b"\\ud800", b"1e999",
    b"\xff\xff", b"%00", b"../", b"\x16\x03\x01\x02\x00\x01", b"\xef\xbb\xbf",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FuzzCase:
    """What one connection sends, and how.

    Attributes:
        pieces: the bytes, in writes of their own.
        pauses: seconds after each piece.
        ending: what the client does when it has written everything.
    """

    pieces: tuple[bytes, ...]
    pauses: tuple[float, ...]
    ending: Ending

    @classmethod
    def draw(cls, draw: random.Random, *, with_key: bool = True) -> FuzzCase:
        """A case that depends on nothing but the state of `draw`."""
        key = KEY if with_key and draw.random() < 0.7 else "wrong"
        data = _websocket(draw, key) if draw.random() < 0.35 else _http(draw, key)
        for _ in range(draw.choice([0, 1, 1, 2, 4, 16])):
            data = draw.choice(_MUTATIONS)(draw, data)
        pieces = _split(draw, data)
        slow = draw.random() < 0.2
        pauses = tuple(draw.random() * 0.2 if slow and draw.random() < 10 / len(pieces) else 0.0 for _ in pieces)
        ending: Ending = draw.choice(("read", "read", "half-close", "reset", "stall"))
        return cls(pieces, pauses, ending)

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)


def _http(draw: random.Random, key: str) -> bytes:
    """One to five requests behind each other, each right but for its odd headers."""
    return b"".join(_request(draw, key) for _ in range(draw.choice([1, 1, 1, 2, 5])))


def _request(draw: random.Random, key: str) -> bytes:
    body = _body(draw)
    method = draw.choice(["GET", "POST", "POST", "POST", "HEAD", "OPTIONS", "DELETE", "BREW"])
    version = draw.choice(["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0"])
    lines = [f"{method} {draw.choice(_PATHS)} {version}", "Host: localhost", f"Authorization: Bearer {key}"]
    lines += draw.sample(_HEADERS, draw.choice([0, 0, 1, 2, 4]))
    match draw.randrange(4):
        case 0:
            lines.append("Transfer-Encoding: chunked")
            body = _chunked(draw, body)
        case 1:
            body = _bomb() if draw.random() < 0.2 else gzip.compress(body, 1, mtime=0)
            lines += ["Content-Encoding: gzip", f"Content-Length: {len(body)}"]
        case _:
            lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


@functools.cache
def _bomb() -> bytes:
    """A small body that unpacks to 256 MiB."""
    return gzip.compress(bytes(1 << 24), 9, mtime=0) * 16


def _body(draw: random.Random) -> bytes:
    match draw.randrange(8):
        case 0:
            return b""
        case 1:
            return draw.randbytes(draw.randrange(2000))
        case 2:
            return b" " * (1 << draw.randrange(10, 24))  # unpacks to more than a body may have
        case 3:
            return b"[" * draw.randrange(20_000)
    body: dict[str, object] = {"prompt": "tide", "max_tokens": draw.randrange(1, 8), "stream": draw.random() < 0.5}
    if draw.random() < 0.5:
        body = {"messages": [{"role": "user", "content": "tide"}], "max_tokens": draw.randrange(1, 8)}
    if draw.random() < 0.3:
        body["input"] = draw.choice(["a", ["a"], 7, None, {"a": []}])
    return orjson.dumps(body)


def _chunked(draw: random.Random, body: bytes) -> bytes:
    size = draw.choice([1, 7, 1000, 65536])
    pieces = [body[start : start + size] for start in range(0, min(len(body), 200 * size), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def _websocket(draw: random.Random, key: str) -> bytes:
    """A handshake and some frames."""
    path, version = (
        draw.choice(["/v1/stream", "/v1/stream", "/v1/responses", "/nowhere"]),
        draw.choice([13] * 4 + [8, 99]),
    )
    lines = [
        f"GET {path} HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {key}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        f"Sec-WebSocket-Version: {version}",
        f"Sec-WebSocket-Key: {base64.b64encode(draw.randbytes(16)).decode()}",
    ]
    compressed = draw.random() < 0.5
    if compressed:
        bits = draw.choice(
            ["", "; client_max_window_bits", "; server_no_context_takeover", "; client_max_window_bits=9"]
        )
        lines.append(f"Sec-WebSocket-Extensions: permessage-deflate{bits}")
    head = "\r\n".join(lines).encode() + b"\r\n\r\n"
    return head + b"".join(_frame(draw, compressed=compressed) for _ in range(draw.choice([0, 1, 3, 30])))


def _frame(draw: random.Random, *, compressed: bool) -> bytes:
    payload = draw.choice([
        orjson.dumps({"type": "generate", "id": "f", "prompt": "tide", "max_tokens": 3}),
        orjson.dumps({"type": draw.choice(["cancel", "resume", "response.create", "x", 7]), "id": "f"}),
        b"", b"{}", b"\xff\xfe", struct.pack(">H", draw.randrange(65536)), draw.randbytes(draw.randrange(300)),
    ])  # fmt: skip
    first = draw.choice([0x81, 0x81, 0x81, 0x82, 0x01, 0x00, 0x80, 0x88, 0x89, 0x8A, 0x83, 0x8F])
    if compressed and first & 0x0F in (1, 2) and draw.random() < 0.7:
        first |= 0x40
        if draw.random() < 0.2:
            payload = b" " * (1 << draw.randrange(10, 24))
        packer = zlib.compressobj(1, zlib.DEFLATED, -15)
        payload = packer.compress(payload) + packer.flush(zlib.Z_SYNC_FLUSH)[:-4]
    if draw.random() < 0.05:
        first |= draw.choice([0x10, 0x20, 0x40])
    length = len(payload)
    announced = length if draw.random() < 0.95 else draw.choice([0, 125, 126, 127, 1 << 16, 1 << 31, (1 << 63) - 1])
    masked = 0x80 if draw.random() < 0.95 else 0
    if announced < 126:
        head = struct.pack(">BB", first, masked | announced)
    elif announced < 1 << 16:
        head = struct.pack(">BBH", first, masked | 126, announced)
    else:
        head = struct.pack(">BBQ", first, masked | 127, announced)
    mask = draw.randbytes(4)
    repeated = (mask * (length // 4 + 1))[:length]
    mixed = (int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")).to_bytes(length, "big")
    return head + (mask + mixed if masked else payload)


def _flip(draw: random.Random, data: bytes) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    changed[draw.randrange(min(len(changed), 4096))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _cut(draw: random.Random, data: bytes) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def _remove(draw: random.Random, data: bytes) -> bytes:
    start = draw.randrange(len(data) + 1)
    return data[:start] + data[start + draw.choice([1, 2, 8, 64]) :]


def _repeat(draw: random.Random, data: bytes) -> bytes:
    start = draw.randrange(len(data) + 1)
    return data[:start] + data[start : start + draw.choice([1, 20, 200])] * draw.choice([2, 20]) + data[start:]


def _insert(draw: random.Random, data: bytes) -> bytes:
    start = draw.randrange(min(len(data), 2000) + 1)
    return data[:start] + draw.choice(_TOKENS) + data[start:]


def _insert_header(draw: random.Random, data: bytes) -> bytes:
    line, end, rest = data.partition(b"\r\n")
    return line + end + draw.choice(_HEADERS).encode("latin-1") + b"\r\n" + rest


_MUTATIONS: tuple[Mutation, ...] = (_flip, _cut, _remove, _repeat, _insert, _insert, _insert_header)


def _split(draw: random.Random, data: bytes) -> tuple[bytes, ...]:
    """The bytes at once, one by one, or in some pieces."""
    size = draw.choice([len(data), len(data), 1, draw.randrange(1, 2000)])
    size = max(size, 1, -(-len(data) // MAX_PIECES))
    return tuple(data[start : start + size] for start in range(0, len(data), size)) or (b"",)
