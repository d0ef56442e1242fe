"""Attacks below HTTP and over WebSockets: slow, stalled, frozen and ill-mannered connections."""

import asyncio
import base64
import contextlib
import os
import signal
import struct
import sys

import orjson

from benchmarks.chaos.target import KEY, Target

_PATIENCE = 20.0  # seconds until the server must have given up on a slow client
_UPGRADE = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")


async def slow_loris(target: Target) -> None:
    """A head, or a body, that trickles in and never ends."""
    reader, writer = await target.connect()
    with contextlib.suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(target.draw.random() * 4):
            if target.draw.random() < 0.5:
                writer.write(b"POST /v1/completions HTTP/1.1\r\n")
                while True:
                    writer.write(b"X-Slow: 1\r\n")
                    await writer.drain()
                    await asyncio.sleep(0.3)
            writer.write(target.head("POST", "/v1/completions", "Content-Length: 100000"))
            while not reader.at_eof():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.3)
    await _close(writer)
    target.ledger.note("slow loris", "left")


async def stalled_reader(target: Target) -> None:
    """A client that asks for a long stream and reads nothing, until the server cuts it off."""
    reader, writer = await target.connect()
    body = orjson.dumps(target.body(max_tokens=300, ignore_eos=True, n=4, logprobs=20))
    writer.write(
        target.head("POST", "/v1/completions", "Content-Type: application/json", f"Content-Length: {len(body)}") + body
    )
    await writer.drain()
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.sleep(target.draw.random() * 6)
    with contextlib.suppress(RuntimeError):
        writer.transport.resume_reading()  # type: ignore[attr-defined]
    await _close(writer)
    target.ledger.note("stalled reader", "left")
    del reader


_FROZEN = """
import socket, sys
host, port, request = sys.argv[1], int(sys.argv[2]), sys.stdin.buffer.read()
sock = socket.create_connection((host, port)); sock.sendall(request); sock.recv(100)
print("reading", flush=True)
while sock.recv(10): pass
"""


async def frozen_client(target: Target) -> None:
    """A client process that is stopped (SIGSTOP) in mid-stream, goes on later, or is killed."""
    host, port = target.address
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-S", "-c", _FROZEN, host, str(port),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    body = orjson.dumps(target.body(max_tokens=200, ignore_eos=True))
    process.stdin.write(
        target.head("POST", "/v1/completions", f"Content-Length: {len(body)}", "Connection: close") + body
    )
    process.stdin.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            await process.stdout.readline()
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGSTOP)
        await asyncio.sleep(target.draw.random() * 4)
        os.kill(process.pid, signal.SIGCONT if target.draw.random() < 0.5 else signal.SIGKILL)
        await asyncio.sleep(0.2)
        process.kill()
    await process.wait()
    target.ledger.note("frozen client", "ended")


async def half_closed(target: Target) -> None:
    """A client that closes its sending half and still reads, or resets the connection."""
    reader, writer = await target.connect()
    body = orjson.dumps(target.body(max_tokens=20))
    writer.write(target.head("POST", "/v1/completions", f"Content-Length: {len(body)}", "Connection: close") + body)
    with contextlib.suppress(OSError):  # the server may have closed it before
        if target.draw.random() < 0.5:
            writer.write_eof()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5):
                    await reader.read(200)
        else:
            sock = writer.get_extra_info("socket")
            sock.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SOL_SOCKET, SO_LINGER: close with a reset
    await _close(writer)
    target.ledger.note("half closed", "left")


async def garbage(target: Target) -> None:
    """Bytes that are no HTTP."""
    reader, writer = await target.connect()
    writer.write(
        target.draw.choice(
            [b"\x16\x03\x01\x02\x00", b"\0" * 5000, b"GET / HTTP/9.9\r\n\r\n", b"A" * 100_000, b"\r\n" * 50]
        )
    )
    with contextlib.suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(2):
            answer = await reader.read(100)
            target.ledger.note("garbage", answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/") else "closed")
            if answer.startswith(b"HTTP/") and answer[9:10] == b"5" and answer[9:12] != b"503":
                target.ledger.fail(f"garbage was answered with {answer!r}")
    await _close(writer)


async def socket_of_many(target: Target) -> None:
    """Many generations on one WebSocket, some cancelled, some twice, then closed or torn."""
    async with target.session.ws_connect(f"{target.url}/v1/stream") as socket:
        ids = [f"g{index}" for index in range(target.draw.randint(1, 12))]
        for client_id in ids:
            body = target.body()
            body.pop("stream")
            await socket.send_json({"type": "generate", "id": client_id, **body})
            if target.draw.random() < 0.3:
                await socket.send_json({"type": "cancel", "id": target.draw.choice(ids)})
        num_frames = target.draw.randint(0, 60)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(3):
                async for message in socket:
                    kind = orjson.loads(message.data)["type"] if message.type.value == 1 else "close"
                    target.ledger.note("socket of many", kind)
                    num_frames -= 1
                    if num_frames < 0:
                        break
        if target.draw.random() < 0.3 and socket._response.connection is not None:
            socket._response.connection.close()


async def wrong_frames(target: Target) -> None:
    """Frames that break the WebSocket protocol (RFC 6455) or ours: bad UTF-8, fragments, wrong order, floods."""
    reader, writer = await target.connect()
    key = base64.b64encode(target.draw.randbytes(16)).decode()
    writer.write(target.head("GET", "/v1/stream", *_UPGRADE, f"Sec-WebSocket-Key: {key}"))
    with contextlib.suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(5):
            head = await reader.readuntil(b"\r\n\r\n")
            target.ledger.note_status("wrong frames", int(head[9:12]), (101,))
            for frame in target.draw.choice(_FRAMES):
                writer.write(frame)
                await writer.drain()
            await asyncio.wait_for(reader.read(1000), 0.5)
    await _close(writer)


async def forbidden_frames(target: Target) -> None:
    """Frames that must end a socket with code 1002, and versions of the protocol that are not spoken."""
    reader, writer = await target.connect()
    is_version, key = target.draw.random() < 0.2, base64.b64encode(target.draw.randbytes(16)).decode()
    upgrade = [line.replace("13", target.draw.choice(["7", "8", "14"])) if is_version else line for line in _UPGRADE]
    writer.write(target.head("GET", "/v1/stream", *upgrade, f"Sec-WebSocket-Key: {key}"))
    with contextlib.suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(_PATIENCE):
            status = int((await reader.readuntil(b"\r\n\r\n"))[9:12])
            target.ledger.note_status("forbidden frames", status, (426,) if is_version else (101, 429))
            if status == 101:
                writer.write(target.draw.choice(_FORBIDDEN))
                answer = await reader.readexactly(4)
                target.ledger.note("forbidden frames", str(int.from_bytes(answer[2:], "big")))
                if answer[0] != 0x88 or answer[2:] != struct.pack(">H", 1002):
                    target.ledger.fail(f"forbidden frames were answered with {answer!r}")
    await _close(writer)


async def key_in_a_protocol(target: Target) -> None:
    """A browser's WebSocket, whose key is a subprotocol."""
    protocols = ["eagre", f"eagre-api-key.{KEY if target.draw.random() < 0.5 else 'wrong-key-wrong'}"]
    from aiohttp import ClientSession, WSServerHandshakeError

    async with ClientSession() as session:  # without the headers of the common one
        try:
            async with session.ws_connect(f"{target.url}/v1/stream", protocols=protocols) as socket:
                target.ledger.note("key in a protocol", socket.protocol or "no protocol")
        except WSServerHandshakeError as error:
            target.ledger.note_status("key in a protocol", error.status, (401,))


def _frame(first: int, payload: bytes, *, masked: bool = True) -> bytes:
    length = len(payload)
    head = bytes([first, (0x80 if masked else 0) | (length if length < 126 else 126)])
    if length >= 126:
        head += struct.pack(">H", length)
    return head + (b"\0\0\0\0" if masked else b"") + payload


_HELLO = orjson.dumps({"type": "generate", "id": "x", "prompt": "Hello", "max_tokens": 5})
_FRAMES: tuple[tuple[bytes, ...], ...] = (
    (_frame(0x81, b"\xff\xfe"),),  # text that is not UTF-8
    (_frame(0x01, _HELLO[:7]), _frame(0x00, _HELLO[7:20]), _frame(0x80, _HELLO[20:])),  # one message in fragments
    (_frame(0x01, b"{"), _frame(0x81, b"}")),  # a new message inside a fragmented one
    (_frame(0x80, b"continuation of nothing"),),
    (_frame(0x81, _HELLO, masked=False),),
    (_frame(0x89, b"x" * 126),),  # a ping that is too long
    (_frame(0x83, b""),),  # a reserved opcode
    (_frame(0xF1, b"{}"),),  # reserved bits
    tuple(_frame(0x89, b"ping") for _ in range(500)),
    tuple(_frame(0x81, b"{}") for _ in range(500)),
    tuple(_frame(0x81, b'{"type":"cancel","id":"none"}') for _ in range(300)),
    (_frame(0x82, b"binary"), _frame(0x81, b"[1]"), _frame(0x81, b'"x"'), _frame(0x81, b'{"type":7}')),
    (_frame(0x88, b"\x03"),),  # a close frame of one byte
    (_frame(0x88, struct.pack(">H", 5000)),),
    (b"\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0",),  # 2^63 bytes announced
)
_FORBIDDEN = (
    _frame(0x81, _HELLO, masked=False),
    _frame(0x88, struct.pack(">H", 1000), masked=False),
    _frame(0x80, b"continuation of nothing"),
    _frame(0x83, b""),
    _frame(0xF1, b"{}"),
    _frame(0x09, b"half a ping"),
    _frame(0x01, b"") + _frame(0x81, b"{}"),
    *(_frame(0x88, struct.pack(">H", code)) for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000)),
)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(5):
            await writer.wait_closed()
