"""Places in a stream that mean the same however its events were interleaved."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeAlias

from server.generation.push import Sink
from server.protocol.errors import ApiError, shorten
from server.streams.event_log import EventLog, never_sent

MAX_CHOICES = 16  # answers of one resumable stream
MAX_PLACE_CHARS = 256

# How many events of each lane a reader has.
Place: TypeAlias = tuple[int, ...]

_PLACE = re.compile(r"[0-9]{1,9}(-[0-9]{1,9})*")


class PlacedEvent(NamedTuple):
    """An event as one reader gets it."""

    place: bytes | None  # where the reader stands when it has this event; None: it counts for nothing
    event: bytes
    is_last: bool


class Lanes:
    """The events of one stream, each in the lane of its answer; those of no answer have a lane of their own.

    The events of an answer are the same in every run of its request, one after the other, as long as the request has a
    seed. How the events of several answers are interleaved depends on timing. So a place counts the events of each lane
    apart: `1-5-3` stands behind one event of no answer, five of the first and three of the second. A stream of one
    answer always has the same order and needs one lane, whose place is one number.
    """

    def __init__(self, log: EventLog, num_choices: int, *, is_recomputed: bool = False) -> None:
        """Args:
        is_recomputed: readers may be ahead of it, because they have events of an earlier run.
        """
        self._log = log
        self._num_lanes = 1 if num_choices == 1 else num_choices + 1
        self._is_recomputed = is_recomputed
        # Of the events, the dropped ones included; a single lane needs neither. A reader that comes back finds its
        # place by the second without going through all events.
        self._lane_of = bytearray()
        self._numbers = [array("I") for _ in range(self._num_lanes)]  # of each lane's events, ascending
        self._counts = [0] * self._num_lanes
        self._is_complete = False

    @property
    def beginning(self) -> Place:
        return (0,) * self._num_lanes

    def append(self, event: bytes, choice: int | None, *, is_last: bool = False) -> None:
        """Adds an event.

        Args:
            choice: the index of its answer.
            is_last: no other follows.
        """
        lane = 0 if self._num_lanes == 1 or choice is None else choice + 1
        self._counts[lane] += 1
        if self._num_lanes > 1:
            self._numbers[lane].append(len(self._lane_of))
            self._lane_of.append(lane)
        self._is_complete = is_last
        self._log.append(event)

    def pass_on(self, event: bytes) -> None:
        """Shows an event to those who read now; it has no place."""
        self._log.pass_on(event)

    def parse(self, text: str) -> Place:
        """The place that `encode` wrote as `text`.

        Raises:
            ApiError: it is none of this stream.
        """
        found = _PLACE.fullmatch(text) if len(text) <= MAX_PLACE_CHARS else None
        place = () if found is None else tuple(map(int, text.split("-")))
        if len(place) != self._num_lanes:
            shape = "a number" if self._num_lanes == 1 else f"{self._num_lanes} numbers with hyphens between them"
            raise ApiError(
                f"after is {shorten(text)}; a place in this stream is {shape}", param="after", code="invalid_value"
            )
        if not self._is_recomputed and any(map(int.__gt__, place, self._counts)):
            raise never_sent(encode(place).decode(), encode(self._counts).decode())
        return place

    def is_end(self, place: Place) -> bool:
        """Whether nothing follows `place`."""
        return self._log.is_ended and self._log.error is None and place == tuple(self._counts)

    async def read(self, had: Place, sink: Sink[PlacedEvent] | None = None) -> AsyncIterator[list[PlacedEvent]]:
        """What follows `had`, as it comes.

        Args:
            sink: takes events while it is ready and the reader waits for the next item; never the last event.

        Raises:
            ApiError: an event that follows has been dropped, the stream has failed, or it ends before `had`.
        """
        counts, start = ([], had[0]) if self._num_lanes == 1 else self._skip(had)
        place = partial(self._place, had, counts)
        async for batch in self._log.read(start, None if sink is None else _Following(self, place, sink)):
            if batch.passing is not None:
                yield [PlacedEvent(None, batch.passing, False)]
            placed = [place(after, event) for after, event in enumerate(batch.events, start=batch.first + 1)]
            news = [event for event in placed if event is not None]
            if news:
                yield news
        if any(map(int.__gt__, had, counts)):
            raise never_sent(encode(had).decode(), encode(counts).decode())

    @property
    def is_complete(self) -> bool:
        """Whether the last event has been added."""
        return self._is_complete

    def _place(self, had: Place, counts: list[int], after: int, event: bytes) -> PlacedEvent | None:
        """One event as a reader gets it; None where it has it already.

        Args:
            counts: the reader's, of the events of each lane, which go on by this event; empty of a single lane.
            after: how many events there are with this one.
        """
        is_last = self._is_complete and after == self._log.num_events
        if not counts:
            return PlacedEvent(b"%d" % after, event, is_last)
        lane = self._lane_of[after - 1]
        counts[lane] += 1
        if counts[lane] <= had[lane]:
            return None
        return PlacedEvent(encode(map(max, counts, had)), event, is_last)

    def _skip(self, had: Place) -> tuple[list[int], int]:
        """The counts before the first event that a reader with `had` lacks, and the number of that event."""
        lacking = (numbers[had[lane]] for lane, numbers in enumerate(self._numbers) if had[lane] < len(numbers))
        first = min(lacking, default=len(self._lane_of))
        return [bisect_left(numbers, first) for numbers in self._numbers], first


class _Following:
    """Hands the events of a stream to the sink of a reader that waits for them; see `Follower`."""

    __slots__ = ("_lanes", "_place", "_sink")

    def __init__(
        self, lanes: Lanes, place: Callable[[int, bytes], PlacedEvent | None], sink: Sink[PlacedEvent]
    ) -> None:
        self._lanes = lanes
        self._place = place
        self._sink = sink

    def take(self, number: int, event: bytes) -> bool:
        if self._lanes.is_complete or not self._sink.is_ready:
            return False
        placed = self._place(number + 1, event)
        if placed is not None:
            self._sink.take((placed,))
        return True

    def flush(self) -> None:
        if self._sink.outbox is not None:
            self._sink.outbox.flush()


def encode(place: Iterable[int]) -> bytes:
    """A place as clients see it."""
    return "-".join(map(str, place)).encode()
