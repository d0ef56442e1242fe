"""Writes past all tasks, and the bytes around them."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

from server.http.transport.connection_writer import ConnectionWriter, chunk, text_frames


class Transport:
    """Takes `room` bytes at once and buffers the rest."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.room = 1000
        self.is_broken = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def get_write_buffer_size(self) -> int:
        return max(0, sum(map(len, self.writes)) - self.room)

    def is_closing(self) -> bool:
        return self.is_broken


class Connection:
    def __init__(self) -> None:
        self.fake: Transport | None = Transport()

    @property
    def transport(self) -> asyncio.Transport | None:
        return cast("asyncio.Transport | None", self.fake)


async def test_all_that_is_put_in_leaves_in_one_write() -> None:
    connection = Connection()
    writer = ConnectionWriter(connection, b"".join)
    for piece in (b"a", b"b", b"c"):
        writer.put([piece])
    before = asyncio.get_running_loop().time()
    writer.flush()
    writer.flush()
    assert connection.fake is not None
    assert connection.fake.writes == [b"abc"]
    assert writer.last_write_at >= before
    assert writer.is_ready


async def test_followers_are_told_of_a_slow_client_once_what_they_put_in_is_written() -> None:
    connection = Connection()
    writer = ConnectionWriter(connection, b"".join)
    told: list[Exception | None] = []
    writer.follow(told.append)
    writer.put([b"x" * 999])
    writer.flush()
    assert told == []
    writer.put([b"xx"])
    writer.flush()
    assert told == [None]
    assert not writer.is_ready
    writer.leave(told.append)
    writer.put([b"x"])
    writer.flush()
    assert told == [None]


@pytest.mark.parametrize("end", ["lost", "closing", "closed by a message"])
async def test_nothing_is_written_to_a_closed_connection(end: str) -> None:
    connection = Connection()
    transport = connection.fake
    assert transport is not None
    writer = ConnectionWriter(connection, b"".join, lambda: end == "closed by a message")
    told: list[Exception | None] = []
    writer.follow(told.append)
    transport.is_broken = end == "closing"
    if end == "lost":
        connection.fake = None
    writer.put([b"x"])
    writer.flush()
    assert [type(error) for error in told] == [ConnectionResetError]
    assert transport.writes == []


def test_a_chunk_has_its_length_in_hexadecimal() -> None:
    assert chunk([b"x" * 10, b"y" * 16]) == b"1a\r\n" + b"x" * 10 + b"y" * 16 + b"\r\n"


def test_frames_are_read_as_they_were_written() -> None:
    messages = [b"x" * length for length in (0, 1, 125, 126, 65535, 65536)]
    reader = StreamReader()
    reader.feed_data(text_frames(messages))
    reader.feed_eof()
    for message in messages:
        with pytest.raises(StopIteration) as end:  # all of the frame is there
            next(Frame.parse(reader.read_exact, mask=False))
        assert end.value.value == Frame(Opcode.TEXT, message)
    assert reader.buffer == b""
