"""A place in a stream of several answers is found without going through all of its events."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.holding.byte_budget import ByteBudget
from server.holding.event_log import EventLog
from server.holding.lanes import Lanes


def opened() -> tuple[EventLog, Lanes]:
    log = EventLog(1 << 24, ByteBudget(1 << 24, lambda: None))
    return log, Lanes(log, 2)


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
