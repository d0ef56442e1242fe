"""A place in a stream of several answers is found without going through all of its events."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from server.streams.byte_budget import ByteBudget
from server.streams.event_log import EventLog
from server.streams.lanes import Lanes, PlacedEvent


def opened(num_choices: int = 2) -> tuple[EventLog, Lanes]:
    log = EventLog(1 << 24, ByteBudget(1 << 24, lambda: None))
    return log, Lanes(log, num_choices)


class Client:
    """What a reader writes, and what is pushed to it while it waits."""

    def __init__(self) -> None:
        self.is_ready = True
        self.outbox = self
        self.wire: list[PlacedEvent] = []
        self.num_pushed = 0
        self._pushed: list[PlacedEvent] = []

    def take(self, pieces: Sequence[PlacedEvent]) -> None:
        assert self.is_ready
        self._pushed += pieces
        self.num_pushed += len(pieces)

    def flush(self) -> None:
        self.wire += self._pushed
        self._pushed.clear()

    async def read(self, lanes: Lanes, had: tuple[int, ...]) -> None:
        async for events in lanes.read(had, self):
            self.wire += events

    def follow(self, stop: object) -> None:
        """The log asks whether it is ready."""

    leave = follow


async def rest(lanes: Lanes, had: tuple[int, ...]) -> list[bytes]:
    return [placed.event async for batch in lanes.read(had) for placed in batch]


@given(st.lists(st.sampled_from([None, 0, 1])), st.data())
async def test_a_reader_gets_what_it_lacks_of_each_answer(choices: list[int | None], data: st.DataObject) -> None:
    log, lanes = opened()
    of_lane: list[list[bytes]] = [[], [], []]
    for number, choice in enumerate(choices):
        event = b"%d" % number
        of_lane[0 if choice is None else choice + 1].append(event)
        lanes.append(event, choice)
    log.end()
    had = tuple(data.draw(st.integers(0, len(events))) for events in of_lane)
    lacking = {event for count, events in zip(had, of_lane, strict=True) for event in events[count:]}
    got = await rest(lanes, had)
    assert set(got) == lacking
    assert got == sorted(got, key=int)


@given(
    st.integers(1, 2),
    st.lists(st.tuples(st.sampled_from([None, 0]), st.sampled_from(["wait", "fill", "empty", "flush", "go on"]))),
    st.data(),
)
async def test_what_is_pushed_and_what_is_read_make_the_same_stream(
    num_choices: int, steps: list[tuple[int | None, str]], data: st.DataObject
) -> None:
    log, lanes = opened(num_choices)
    had = tuple(data.draw(st.integers(0, 2)) for _ in lanes.beginning)
    client = Client()
    for number in range(2):  # what a reader may have already
        for choice in (None, *range(num_choices)):
            lanes.append(b"%d" % number, choice)
    reader = asyncio.create_task(client.read(lanes, had))
    for number, (choice, what) in enumerate(steps):
        client.is_ready = {"fill": False, "empty": True}.get(what, client.is_ready)
        lanes.append(b"of %d" % number, choice)
        if what == "flush":
            log.flush()
        elif what == "wait":
            log.flush()
            for _ in range(3):
                await asyncio.sleep(0)
    lanes.append(b"last", None, is_last=True)
    log.end()
    await reader
    assert client.wire == [placed async for batch in lanes.read(had) for placed in batch]
    assert client.wire[-1].is_last


async def test_a_reader_that_waits_is_pushed_to_without_being_woken() -> None:
    log, lanes = opened(1)
    client = Client()
    reader = asyncio.create_task(client.read(lanes, lanes.beginning))
    await asyncio.sleep(0)
    lanes.append(b"a", 0)
    lanes.append(b"b", 0)
    assert client.wire == []  # one write for what comes together
    log.flush()
    assert client.wire == [(b"1", b"a", False), (b"2", b"b", False)]
    lanes.append(b"c", 0, is_last=True)
    log.end()
    await reader
    assert (client.wire[2:], client.num_pushed) == ([(b"3", b"c", True)], 2)
