from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from server.http.transport.write_timeout import WriteTimeout
from tests.patience import PATIENCE_S
from tests.server.conftest import eventually


class Connection:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_cut = False
        self.may_write = asyncio.Event()
        self.may_write.set()

    async def write(self, data: bytes) -> None:
        await self.may_write.wait()
        if self.is_cut:
            raise ConnectionResetError
        self.written.append(data)

    def cut(self) -> None:
        self.is_cut = True
        self.may_write.set()

    def watch(self, ping_interval: float, write_timeout: float) -> WriteTimeout:
        return WriteTimeout(
            self.write, self.cut, ping=b"ping", ping_interval=ping_interval, write_timeout=write_timeout
        )


async def test_silence_is_filled_with_pings() -> None:
    connection = Connection()
    async with connection.watch(0.01, PATIENCE_S) as watch:
        await watch.write(b"a")
        await eventually(lambda: connection.written[-2:] == [b"ping", b"ping"])
        await watch.write(b"b")
    assert connection.written[0] == b"a"
    assert b"b" in connection.written
    num_written = len(connection.written)
    await asyncio.sleep(0.03)
    assert len(connection.written) == num_written


async def test_no_ping_while_there_are_writes() -> None:
    connection = Connection()
    async with connection.watch(60, PATIENCE_S) as watch:
        for _ in range(5):
            await watch.write(b"a")
    assert connection.written == [b"a"] * 5


async def test_a_stalled_write_is_cut() -> None:
    connection = Connection()
    connection.may_write.clear()
    async with connection.watch(60, 0.02) as watch:
        try:
            await asyncio.wait_for(watch.write(b"a"), PATIENCE_S)
        except ConnectionResetError:
            pass
        else:
            raise AssertionError("the write succeeded")
    assert connection.is_cut


async def test_a_stalled_ping_is_cut_too() -> None:
    connection = Connection()
    connection.may_write.clear()
    async with connection.watch(0.01, 0.02):
        await eventually(lambda: connection.is_cut)
    assert connection.written == []


async def test_a_stalled_end_is_cut_too() -> None:
    cut = asyncio.Event()

    async def write(data: bytes) -> None:
        pass

    async def write_eof() -> None:
        await cut.wait()
        raise ConnectionResetError

    async with WriteTimeout(write, cut.set, ping=b"", ping_interval=60, write_timeout=0.02) as watch:
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(watch.finish(write_eof), PATIENCE_S)


async def test_a_watch_that_is_over_needs_no_garbage_collection() -> None:
    connection = Connection()
    gc.disable()
    try:
        async with connection.watch(60, PATIENCE_S) as watch:
            await asyncio.sleep(0)
        kept = weakref.ref(watch)
        del watch
        await asyncio.sleep(0)
        assert kept() is None
    finally:
        gc.enable()
