"""What a client sends on a WebSocket against RFC 6455 ends it with the code that the RFC wants."""

from __future__ import annotations

import asyncio
import struct

import pytest

from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer

UPGRADE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: %b\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
HELLO = b'{"type":"generate","id":"x","prompt":"a","max_tokens":1}'


def frame(first: int, payload: bytes = b"", *, is_masked: bool = True) -> bytes:
    assert len(payload) < 126
    mask = b"\x01\x02\x03\x04" if is_masked else b""
    masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload)) if is_masked else payload
    return bytes([first, len(payload) | (0x80 if is_masked else 0)]) + mask + masked


def closing(code: int, reason: bytes = b"") -> bytes:
    return frame(0x88, struct.pack("!H", code) + reason)


async def close_code(server: RunningServer, *frames: bytes) -> int:
    """With which code the server ends a socket on which these frames are sent, each in a packet of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    writer.write(UPGRADE % b"13")
    async with asyncio.timeout(PATIENCE_S):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        for each in frames:
            writer.write(each)
            await asyncio.sleep(0.01)
        while True:
            first, length = await reader.readexactly(2)
            if length == 126:
                (length,) = struct.unpack("!H", await reader.readexactly(2))
            payload = await reader.readexactly(length)
            if first == 0x88:
                writer.transport.abort()
                return int.from_bytes(payload[:2], "big")


FORBIDDEN = {
    "unmasked text": (frame(0x81, HELLO, is_masked=False),),
    "unmasked text in two packets": (frame(0x81, HELLO, is_masked=False)[:9], frame(0x81, HELLO, is_masked=False)[9:]),
    "unmasked empty text": (frame(0x81, is_masked=False),),
    "an unmasked ping": (frame(0x89, is_masked=False),),
    "an unmasked close": (frame(0x88, struct.pack("!H", 1000), is_masked=False),),
    "unmasked behind masked": (frame(0x89, b"ping"), frame(0x8A, b"pong", is_masked=False)),
    "a reserved opcode": (frame(0x83),),
    "a reserved control opcode": (frame(0x8B),),
    "a first reserved bit": (frame(0xC1, HELLO),),
    "a second reserved bit": (frame(0xA1, HELLO),),
    "a ping in fragments": (frame(0x09, b"a"), frame(0x80, b"b")),
    "a continuation of nothing": (frame(0x80, b"a"),),
    "a message within another": (frame(0x01, b"{"), frame(0x81, HELLO)),
    "a message within another that is empty so far": (frame(0x01), frame(0x81, HELLO)),
    "a close of one byte": (frame(0x88, b"\x03"),),
    **{
        f"a close with {code}": (closing(code),)
        for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535)
    },
}


@pytest.mark.parametrize("name", FORBIDDEN)
async def test_what_the_protocol_forbids_ends_the_socket(server: RunningServer, name: str) -> None:
    assert await close_code(server, *FORBIDDEN[name]) == 1002


@pytest.mark.parametrize(
    "frames",
    [(frame(0x81, b"\xff\xfe"),), (frame(0x01, b"\xc3"), frame(0x80, b"(")), (closing(1000, b"\xff"),)],
    ids=["text", "fragments", "reason"],
)
async def test_text_that_is_not_utf_8_ends_the_socket(server: RunningServer, frames: tuple[bytes, ...]) -> None:
    assert await close_code(server, *frames) == 1007


@pytest.mark.parametrize("code", [1000, 1001, 1003, 1007, 1011, 1014, 3000, 4999])
async def test_other_codes_are_answered_alike(server: RunningServer, code: int) -> None:
    assert await close_code(server, frame(0x89, b"ping"), closing(code)) in (code, 1000)


async def test_a_message_in_fragments_with_a_ping_between_them_is_taken(server: RunningServer) -> None:
    frames = (frame(0x01, HELLO[:9]), frame(0x89, b"ping"), frame(0x00, HELLO[9:]), frame(0x80), closing(1000))
    assert await close_code(server, *frames) == 1000


@pytest.mark.parametrize("version", [b"8", b"7", b"14", b"0", b"13, 8", b"13\r\nSec-WebSocket-Version: 8"])
async def test_other_versions_are_refused(start_server: StartServer, version: bytes) -> None:
    server = await start_server()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    writer.write(UPGRADE % version)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
    assert head.startswith(b"HTTP/1.1 426 ")
    assert b"Sec-WebSocket-Version: 13\r\n" in head
    writer.close()
