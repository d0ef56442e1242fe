"""The book of addresses: replicas come, renew, leave and are forgotten."""

from __future__ import annotations

import asyncio

import pytest

from server.router.ray import address_book
from server.router.ray.address_book import LEASE_S, AddressBook, RouterInfo

INFO = RouterInfo("node", 7, "a-front-key-of-16")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_reader_waits_for_a_change() -> None:
    book = AddressBook(INFO)
    assert await book.router() == INFO
    first = await book.read()
    assert first.by_replica == {}
    reader = asyncio.create_task(book.read(first.version))
    await asyncio.sleep(0)
    assert not reader.done()
    await book.register("a", "unix:/a")
    second = await reader
    assert second.by_replica == {"a": "unix:/a"}
    await book.register("b", "http://10.0.0.1:5")
    await book.register("a", "unix:/other")  # started again elsewhere
    third = await book.read(second.version)
    assert third.by_replica == {"a": "unix:/other", "b": "http://10.0.0.1:5"}
    await book.deregister("a")
    await book.deregister("a")
    assert (await book.read(third.version)).by_replica == {"b": "http://10.0.0.1:5"}


async def test_who_renews_nothing_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_book, "LONGEST_WAIT_S", 0.001)
    clock = Clock()
    book = AddressBook(INFO, clock)
    await book.register("a", "unix:/a")
    await book.register("b", "unix:/b")
    known = await book.read()
    clock.now = LEASE_S - 1
    await book.register("b", "unix:/b")
    assert (await book.read(known.version)).version == known.version, "a renewal is no change"
    clock.now = LEASE_S + 1
    assert (await book.read(known.version)).by_replica == {"b": "unix:/b"}


async def test_replicas_learn_that_keys_are_to_be_read_again() -> None:
    book = AddressBook(INFO)
    known = await book.num_reloads()
    assert await book.register("a", "unix:/a") == known
    assert await AddressBook(INFO).num_reloads() != known, "a book that stands in for a lost one is seen to be another"
    await book.request_reload()
    assert (
        await book.register("a", "unix:/a") == await book.register("b", "unix:/b") == await book.num_reloads() != known
    )
