"""A place in a stream of several answers is found without going through all of its events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from server.streams.byte_budget import ByteBudget
from server.streams.stream_log import StreamLog


def opened(num_choices: int = 2) -> StreamLog:
    return StreamLog(1 << 24, ByteBudget(1 << 24, lambda: None), num_choices)


class Client:
    """What a reader writes, and what is pushed to it while it waits."""

    def __init__(self) -> None:
        self.is_ready = True
        self.wire: list[tuple[bytes | None, bytes]] = []
        self.num_pushed = 0
        self._pushed: list[tuple[bytes | None, bytes]] = []
        self._stops: list[Callable[[None], None]] = []

    def frame(self, position: bytes, event: bytes) -> bytes:
        assert self.is_ready
        return position + b" " + event

    def put(self, framed: Sequence[bytes]) -> None:
        for piece in framed:
            position, _, event = piece.partition(b" ")
            self._pushed.append((position, event))
        self.num_pushed += len(framed)

    def flush(self) -> None:
        self.wire += self._pushed
        self._pushed.clear()

    def fill(self) -> None:
        """The client becomes slow, which a flush finds out."""
        self.flush()
        self.is_ready = False
        for stop in tuple(self._stops):
            stop(None)

    async def read(self, log: StreamLog, had: tuple[int, ...]) -> None:
        async for entries in log.read(had, self):
            self.wire += [(position, event) for position, event, _ in entries]

    def follow(self, stop: Callable[[None], None]) -> None:
        self._stops.append(stop)

    def leave(self, stop: Callable[[None], None]) -> None:
        self._stops = [other for other in self._stops if other != stop]


async def rest(log: StreamLog, had: tuple[int, ...]) -> list[bytes]:
    return [entry.event async for entries in log.read(had) for entry in entries]


@given(st.lists(st.sampled_from([None, 0, 1])), st.data())
async def test_a_reader_gets_what_it_lacks_of_each_answer(choices: list[int | None], data: st.DataObject) -> None:
    log = opened()
    of_lane: list[list[bytes]] = [[], [], []]
    for number, choice in enumerate(choices):
        event = b"%d" % number
        of_lane[0 if choice is None else choice + 1].append(event)
        log.append(event, choice)
    log.end()
    had = tuple(data.draw(st.integers(0, len(events))) for events in of_lane)
    lacking = {event for count, events in zip(had, of_lane, strict=True) for event in events[count:]}
    got = await rest(log, had)
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
    log = opened(num_choices)
    had = tuple(data.draw(st.integers(0, 2)) for _ in log.beginning)
    client = Client()
    for number in range(2):  # what a reader may have already
        for choice in (None, *range(num_choices)):
            log.append(b"%d" % number, choice)
    reader = asyncio.create_task(client.read(log, had))
    for number, (choice, what) in enumerate(steps):
        if what == "fill":
            client.fill()
        client.is_ready = client.is_ready or what == "empty"
        log.append(b"of %d" % number, choice)
        if what == "flush":
            log.flush()
        elif what == "wait":
            log.flush()
            for _ in range(3):
                await asyncio.sleep(0)
    log.append(b"last", None, is_last=True)
    log.end()
    await reader
    whole = [entry async for entries in log.read(had) for entry in entries]
    assert client.wire == [(position, event) for position, event, _ in whole]
    assert [is_last for *_, is_last in whole] == [False] * (len(whole) - 1) + [True]


async def test_a_reader_that_waits_is_pushed_to_without_being_woken() -> None:
    log = opened(1)
    client = Client()
    reader = asyncio.create_task(client.read(log, log.beginning))
    await asyncio.sleep(0)
    log.append(b"a", 0)
    log.append(b"b", 0)
    assert client.wire == []  # one write for what comes together
    log.flush()
    assert client.wire == [(b"1", b"a"), (b"2", b"b")]
    log.append(b"c", 0, is_last=True)
    log.end()
    await reader
    assert (client.wire[2:], client.num_pushed) == ([(b"3", b"c")], 2)
