"""A log of events: bounded, read by many, ended once."""

from __future__ import annotations

import asyncio

import pytest

from server.protocol.errors import ApiError
from server.streams.byte_budget import ByteBudget
from server.streams.stream_log import EVENT_BYTES, MAX_BATCH, Entry, StreamLog
from tests.patience import PATIENCE_S


def a_log(max_bytes: int = 1 << 20, most_of_all: int = 1 << 30) -> StreamLog:
    return StreamLog(max_bytes, ByteBudget(most_of_all, lambda: None))


async def read_all(log: StreamLog, start: int = 0) -> list[bytes]:
    return [event for entries in [events_of(entries) async for entries in log.read((start,))] for event in entries]


def events_of(entries: list[Entry]) -> list[bytes]:
    return [event for _, event, _ in entries]


async def test_readers_that_begin_anywhere_read_the_same_to_the_end() -> None:
    log = a_log()
    starts = (0, 3, 7, 12)
    readers = [asyncio.create_task(read_all(log, start)) for start in starts]
    sent = [str(number).encode() for number in range(12)]
    for number, event in enumerate(sent):
        assert log.append(event) == number
        if number % 5 == 0:
            await asyncio.sleep(0)
    log.end()
    assert [await reader for reader in readers] == [sent[start:] for start in starts]
    assert await read_all(log, 4) == sent[4:]


async def test_events_that_wait_together_come_together_with_the_number_of_the_first() -> None:
    log = a_log()
    for event in (b"a", b"b", b"c"):
        log.append(event)
    log.end()
    assert [entries async for entries in log.read((1,))] == [[Entry(b"2", b"b", False), Entry(b"3", b"c", False)]]


async def test_a_log_that_would_pass_its_bound_drops_its_oldest_events() -> None:
    log = a_log(max_bytes=10 * (EVENT_BYTES + 100))
    sent = [b"%0100d" % number for number in range(2000)]
    for event in sent:
        log.append(event)
        assert log.num_bytes <= 10 * (EVENT_BYTES + 100)
    log.end()
    assert (log.num_events, log.first_kept) == (2000, 1990)
    assert await read_all(log, 1990) == sent[1990:]
    with pytest.raises(ApiError, match="events before number 1990") as caught:
        await read_all(log, 1989)
    assert (caught.value.status, caught.value.code) == (410, "events_dropped")


async def test_a_reader_that_falls_behind_is_told() -> None:
    log = a_log(max_bytes=2 * (EVENT_BYTES + 1))
    log.append(b"a")
    events = log.read()
    assert events_of(await anext(events)) == [b"a"]
    for _ in range(3):
        log.append(b"b")
    with pytest.raises(ApiError, match="no longer kept"):
        await anext(events)


async def test_logs_give_way_to_their_common_budget_and_keep_their_last_event() -> None:
    budget = ByteBudget(3 * (EVENT_BYTES + 1), lambda: None)
    one, two = StreamLog(1 << 20, budget), StreamLog(1 << 20, budget)
    one.append(b"a")
    for event in (b"a", b"b", b"c", b"d"):
        two.append(event)
    assert (one.first_kept, two.first_kept) == (0, 2)
    two.append(b"e" * 10_000)
    assert await asyncio.wait_for(anext(two.read((4,))), PATIENCE_S) == [Entry(b"5", b"e" * 10_000, False)]
    one.free()
    two.free()
    assert budget.num_bytes == 0


async def test_the_error_of_a_log_comes_behind_its_last_event() -> None:
    log = a_log()
    log.append(b"a")
    log.end(ApiError("broken"))
    events = log.read()
    assert events_of(await anext(events)) == [b"a"]
    with pytest.raises(ApiError, match="broken"):
        await anext(events)
    with pytest.raises(RuntimeError, match="has ended"):
        log.append(b"b")


async def test_a_place_behind_the_end_is_refused_once_the_end_is_known() -> None:
    log = a_log()
    log.append(b"a")
    reader = asyncio.create_task(read_all(log, 3))
    await asyncio.sleep(0)
    assert not reader.done()
    log.end()
    with pytest.raises(ApiError, match="after is 3; the stream has 1 events"):
        await reader
    assert await read_all(log, 1) == []


async def test_a_reader_that_leaves_does_not_disturb_the_others() -> None:
    log = a_log()
    leaving, staying = (asyncio.create_task(read_all(log)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    log.append(b"a")
    log.end()
    assert await staying == [b"a"]


async def test_an_event_without_a_number_is_seen_once_by_those_who_wait_and_not_kept() -> None:
    log, seen = a_log(), []

    async def read() -> None:
        seen.extend([entries async for entries in log.read()])

    reader = asyncio.create_task(read())
    for step in (b"1 of 3", b"2 of 3"):
        log.append_transient(step)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert (log.num_events, log.num_bytes) == (0, 0)
    assert log.append(b"first") == 0
    log.end()
    log.append_transient(b"too late")
    await reader
    assert seen == [[Entry(None, b"1 of 3", False)], [Entry(None, b"2 of 3", False)], [Entry(b"1", b"first", False)]]
    assert await read_all(log) == [b"first"]


async def test_a_reader_of_much_lets_others_have_a_turn_in_between() -> None:
    log, turns = a_log(), 0
    for _ in range(4 * MAX_BATCH):
        log.append(b"x")
    log.end()

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    assert len(await read_all(log)) == 4 * MAX_BATCH
    assert turns >= 3
    task.cancel()
