"""Any bytes on a WebSocket: no failure of the server, nothing left behind, and the next client is served."""

from __future__ import annotations

import asyncio
import json
import os
import struct

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.http.websocket import OPEN_SOCKETS
from tests.fakes.engine_client import FakeEngineClient
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, eventually, server_starter
from tests.server.support.socket_client import open_socket, read_to_end, send

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
HANDSHAKE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def frame(code: int, data: bytes, *, final: bool = True, masked: bool = True, length: int | None = None) -> bytes:
    """A frame of RFC 6455, section 5.2; `length` is what it announces."""
    size = len(data) if length is None else length
    mask_bit = 0x80 if masked else 0
    head = bytes([code | (0x80 if final else 0)])
    if size < 126:
        head += bytes([mask_bit | size])
    elif size < 1 << 16:
        head += bytes([mask_bit | 126]) + struct.pack(">H", size)
    else:
        head += bytes([mask_bit | 127]) + struct.pack(">Q", size)
    if not masked:
        return head + data
    mask = os.urandom(4)
    return head + mask + bytes(byte ^ mask[place % 4] for place, byte in enumerate(data))


def message(**fields: object) -> bytes:
    return json.dumps(fields).encode()


IDS = st.sampled_from(["a", "b", "", "x" * 129, 5, None])
MESSAGES = st.one_of(
    st.builds(lambda key, text: message(type="generate", id=key, prompt=text), IDS, st.text(max_size=20)),
    st.builds(lambda key: message(type="generate", id=key, prompt="ab", ignore_eos=True, max_tokens=400), IDS),
    st.builds(lambda key: message(type="generate", id=key, prompt="ab", n=16), IDS),
    st.builds(lambda key: message(type="generate", id=key, messages=[1]), IDS),
    st.builds(lambda key: message(type="cancel", id=key), IDS),
    st.sampled_from([b"", b"{}", b"[]", b"null", b"{", b"\xff\xfe", b'{"type":"\xed\xa0\x80"}', b"[" * 2000]),
    st.binary(max_size=40),
)
CODES = st.sampled_from([CONTINUATION, TEXT, TEXT, TEXT, BINARY, CLOSE, PING, PONG, 3, 11])
FRAMES = st.one_of(
    st.builds(lambda data: frame(TEXT, data), MESSAGES),
    st.builds(lambda data: frame(TEXT, data) * 300, MESSAGES),  # a flood
    st.builds(
        lambda data, cut: frame(TEXT, data[:cut], final=False) + frame(CONTINUATION, data[cut:]),
        MESSAGES,
        st.integers(0, 20),
    ),
    st.builds(
        lambda code, data, final, masked: frame(code, data, final=final, masked=masked),
        CODES,
        MESSAGES,
        st.booleans(),
        st.booleans(),
    ),
    st.builds(
        lambda code, data, length: frame(code, data, length=length),
        CODES,
        MESSAGES,
        st.sampled_from([0, 1, 125, 126, 65_535, 65_536, 1 << 31, (1 << 63) - 1, (1 << 64) - 1]),
    ),
    st.binary(min_size=1, max_size=30),
)


async def attack(server: RunningServer, frames: list[bytes], cut: int, reads: bool) -> bytes:
    """Sends the frames, the last of them cut short, and leaves. Returns what came back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    received = b""
    try:
        writer.write(HANDSHAKE)
        received = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        for number, data in enumerate(frames):
            writer.write(data[:cut] if number == len(frames) - 1 else data)
        if reads:
            async with asyncio.timeout(0.02):
                while some := await reader.read(65_536):
                    received += some
    except (ConnectionError, TimeoutError):
        pass
    finally:
        writer.transport.abort()
    return received


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(frames=st.lists(FRAMES, min_size=1, max_size=8), cut=st.integers(0, 200), reads=st.booleans())
def test_any_frames(frames: list[bytes], cut: int, reads: bool) -> None:
    async def run() -> None:
        async with server_starter() as start:
            server = await start(FakeEngineClient(), max_body_bytes=2000)
            received = await attack(server, frames, cut, reads)
            assert received.startswith(b"HTTP/1.1 101 ")
            assert b"internal_error" not in received
            assert b"HTTP/1.1 5" not in received
            async with asyncio.timeout(PATIENCE_S):
                async with open_socket(server) as socket:
                    await send(socket, type="generate", id="next", prompt="next")
                    messages = await read_to_end(socket, "next")
            assert "".join(message.get("text", "") for message in messages) == "next"
            await server.assert_all_streams_ended()
            await eventually(lambda: not server.app[OPEN_SOCKETS])
            assert server.served.admission_budget.num_bytes == server.served.admission_budget.num_requests == 0
        await eventually(lambda: len(asyncio.all_tasks()) == 1)

    asyncio.run(run())
