"""JSON values go in and come out, in order, and never block the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from server.storage.record_key import RecordKey, StoreError
from server.storage.record_store import RecordStore


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
    await store.put_bytes(key("list"), b"")
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


def test_a_bad_path_is_known_at_once(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="Is a directory"):
        RecordStore(tmp_path, max_records=1, max_bytes=1 << 20)
