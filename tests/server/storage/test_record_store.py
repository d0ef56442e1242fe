"""JSON values go in and come out, in order, and never block the loop."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from server.admission.cpu_throttle import CpuThrottle
from server.admission.keyring import work_for
from server.storage.database import StoreError
from server.storage.record_store import RecordStore
from server.storage.record_table import RecordKey
from tests.patience import PATIENCE_S


@pytest.fixture
async def store() -> AsyncIterator[RecordStore]:
    opened = RecordStore(None, max_records=100, max_bytes=1 << 20)
    yield opened
    await opened.close()


def key(name: str) -> RecordKey:
    return RecordKey("response", "ann", name)


async def test_values_are_json(store: RecordStore) -> None:
    value = {"text": "Häuser", "numbers": [1, 2.5, None, True]}
    assert await store.get(key("a")) is None
    await store.put(key("a"), value)
    assert await store.get(key("a")) == value
    assert store.num_records == 1
    assert await store.keys("response") == [key("a")]
    assert await store.delete(key("a"))


async def test_changes_do_not_lose_one_another(store: RecordStore) -> None:
    await store.put_made(key("list"), bytes)
    assert await asyncio.gather(*(store.change(key("list"), lambda old: old + b"x") for _ in range(20))) == [
        b"x" * number for number in range(1, 21)
    ]
    assert await store.read(key("list"), len) == 20
    assert await store.change(key("list"), lambda _: None) is None
    assert await store.read(key("list"), len) == 20
    assert await store.change(key("none"), lambda old: old + b"never called") is None
    assert await store.read(key("none"), len) is None


async def test_a_chain_is_followed_from_its_last_record_to_its_first(store: RecordStore) -> None:
    for name, before in (("a", None), ("b", "a"), ("c", "b")):
        await store.put(key(name), {"name": name, "before": before})

    async def names(first: str, most: int = 1000) -> list[str]:
        return [value["name"] for value in await store.follow(key(first), lambda value: value["before"], most)]

    assert await names("c") == ["c", "b", "a"]
    with pytest.raises(StoreError, match="more than 40 bytes"):
        await names("c", most=40)
    await store.delete(key("a"))
    with pytest.raises(KeyError, match="a"):
        await names("c")
    await store.put(key("a"), {"name": "a", "before": "c"})  # a circle ends too
    assert await names("c") == ["c", "b", "a"]


async def test_what_was_begun_happens_although_the_waiter_leaves(store: RecordStore) -> None:
    waiting = asyncio.ensure_future(store.put(key("a"), "kept"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await store.get(key("a")) == "kept"


@asynccontextmanager
async def holding(store: RecordStore) -> AsyncIterator[Callable[[], None]]:
    """Keeps the store's thread busy until the returned function is called, or the context is left."""
    await store.put(key("held"), "tide")
    is_held, may_go = threading.Event(), threading.Event()
    read = asyncio.create_task(store.read(key("held"), lambda _: (is_held.set(), may_go.wait(PATIENCE_S))))
    assert await asyncio.to_thread(is_held.wait, PATIENCE_S)
    try:
        yield may_go.set
    finally:
        may_go.set()
        await read


async def test_what_was_to_be_read_is_left_out_when_the_reader_leaves(store: RecordStore) -> None:
    await store.put(key("a"), "tide")
    done = list[str]()
    async with holding(store):
        reading = [
            asyncio.ensure_future(store.read(key("a"), lambda _: done.append("read"))),
            asyncio.ensure_future(store.follow(key("a"), lambda _: done.append("followed"), 1000)),
        ]
        await asyncio.sleep(0)
        for read in reading:
            read.cancel()
        assert [type(end) for end in await asyncio.gather(*reading, return_exceptions=True)] == [
            asyncio.CancelledError, asyncio.CancelledError,
        ]  # fmt: skip
    assert await store.get(key("a")) == "tide"
    assert done == []


async def test_a_store_that_closes_writes_what_waits_and_reads_it_no_more(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "store", max_records=9, max_bytes=1 << 20)
    await store.put(key("a"), "tide")
    done = list[str]()
    async with holding(store) as let_go:
        reading = asyncio.ensure_future(store.read(key("a"), lambda _: done.append("read")))
        writing = asyncio.ensure_future(store.put(key("b"), "ebb"))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(store.close())
        await asyncio.sleep(0)
        let_go()
        await asyncio.gather(writing, closing)
        with pytest.raises(StoreError, match="closed"):
            await reading
    assert done == []
    again = RecordStore(tmp_path / "store", max_records=9, max_bytes=1 << 20)
    assert await again.get(key("b")) == "ebb"
    await again.close()


async def test_a_tenant_with_many_calls_holds_no_others_call_up(store: RecordStore) -> None:
    await store.put(key("a"), "tide")
    is_held, may_go, order = threading.Event(), threading.Event(), list[str]()

    async def read(name: str) -> None:
        work_for(name[0])
        await store.read(key("a"), lambda _: order.append(name))

    holding = asyncio.create_task(store.read(key("a"), lambda _: (is_held.set(), may_go.wait(PATIENCE_S))))
    await asyncio.to_thread(is_held.wait, PATIENCE_S)
    reading = [asyncio.create_task(read(name)) for name in ("a1", "a2", "a3", "b1")]
    await asyncio.sleep(0)
    may_go.set()
    await asyncio.gather(holding, *reading)
    assert order == ["a1", "b1", "a2", "a3"]


async def test_the_thread_rests_between_calls_until_the_store_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    def rests(*, sleep: Callable[[float], bool], longest: float) -> CpuThrottle:
        computed = iter(range(100))

        def rest(seconds: float) -> None:
            if not sleep(0):
                slept.append(seconds)

        return CpuThrottle(lambda: 0.0, lambda: next(computed), rest)

    monkeypatch.setattr("server.admission.fair_pool.CpuThrottle", rests)
    store = RecordStore(None, max_records=100, max_bytes=1 << 20)
    for _ in range(3):
        await store.put(key("a"), "tide")
    assert slept == [3.0, 3.0]
    waiting = asyncio.ensure_future(store.put(key("a"), "ebb"))
    await asyncio.sleep(0)
    await store.close()
    await waiting


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of single threads")
async def test_the_thread_does_not_stand_behind_others_while_it_holds_the_interpreter_lock(store: RecordStore) -> None:
    def nice() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    await store.put(key("a"), "tide")
    assert await store.read(key("a"), lambda _: nice()) == nice()


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "store", max_records=1, max_bytes=1 << 20)
    await store.put(key("a"), 1)
    await store.close()
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.get(key("a"))
    again = RecordStore(tmp_path / "store", max_records=1, max_bytes=1 << 20)
    assert await again.get(key("a")) == 1
    await again.close()


async def test_a_store_that_can_only_be_read_is_read_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections: list[sqlite3.Connection] = []

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connections.append(sqlite3.Connection(*arguments, **options, check_same_thread=False))
        return connections[-1]

    monkeypatch.setattr(sqlite3, "connect", connect)
    store = RecordStore(tmp_path / "store.db", max_records=10, max_bytes=1 << 20)
    try:
        await store.put(key("a"), 1)
        for is_read_only in (True, False):
            connections[0].execute(f"PRAGMA query_only = {is_read_only:d}")
            assert await store.get(key("a")) == 1
            assert (store.failure is not None) is is_read_only
    finally:
        await store.close()


def test_a_bad_path_is_known_at_once(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="Is a directory"):
        RecordStore(tmp_path, max_records=1, max_bytes=1 << 20)
