"""Positions in a stream. They do not depend on how the events of several choices were interleaved."""

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import TypeAlias

from server.protocol.errors import ApiError, shorten

MAX_POSITION_CHARS = 256

# How many events of each lane a reader has.
Position: TypeAlias = tuple[int, ...]

_POSITION = re.compile(r"[0-9]{1,9}(-[0-9]{1,9})*")


class Lanes:
    """Counts the events of a stream with several choices: a lane for each choice, and one for events of no choice.

    The events of a choice are the same in every run of its request, as long as the request has a seed, and come in the
    same order. How the events of several choices are interleaved depends on timing. So a position counts the events of
    each lane apart: `1-5-3` is behind one event of no choice, five of the first and three of the second.
    """

    def __init__(self, num_choices: int) -> None:
        self.counts = [0] * (num_choices + 1)
        # The lane of each event, the dropped ones included, and the ascending numbers of each lane's events: a reader
        # that comes back finds its place by the second without going through all events.
        self._lane_of = bytearray()
        self._numbers = [array("I") for _ in self.counts]

    def add(self, choice: int | None) -> None:
        """Counts the next event, of the choice of this index."""
        lane = 0 if choice is None else choice + 1
        self.counts[lane] += 1
        self._numbers[lane].append(len(self._lane_of))
        self._lane_of.append(lane)

    def lane_of(self, number: int) -> int:
        return self._lane_of[number]

    def find(self, position: Position) -> tuple[list[int], int]:
        """Finds the first event that a reader at `position` lacks; returns the counts before it, and its number."""
        lacking = (numbers[had] for numbers, had in zip(self._numbers, position, strict=True) if had < len(numbers))
        first = min(lacking, default=len(self._lane_of))
        return [bisect_left(numbers, first) for numbers in self._numbers], first


def encode(position: Iterable[int]) -> bytes:
    """A position as clients see it."""
    return "-".join(map(str, position)).encode()


def parse(text: str, num_lanes: int) -> Position:
    """The position that `encode` wrote as `text`; raises ApiError if it has not one number for each lane."""
    found = _POSITION.fullmatch(text) if len(text) <= MAX_POSITION_CHARS else None
    position = () if found is None else tuple(map(int, text.split("-")))
    if len(position) != num_lanes:
        shape = "a number" if num_lanes == 1 else f"{num_lanes} numbers with hyphens between them"
        raise ApiError(
            f"after is {shorten(text)}; a place in this stream is {shape}", param="after", code="invalid_value"
        )
    return position
