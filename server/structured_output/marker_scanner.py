"""Finds markers such as `</think>` in the bytes of an output while its tokens arrive, across token boundaries."""

from collections.abc import Sequence
from typing import NamedTuple

from server.structured_output.token_table import TokenTable

SPACE = b" \t\r\n"


class FoundMarker(NamedTuple):
    """A marker that a token has completed."""

    marker: bytes
    rest: bytes  # of the token, behind the marker


class MarkerCrossing(NamedTuple):
    """A token that would complete a marker and go on behind it."""

    token_id: int
    found: FoundMarker


class MarkerScanner:
    """Finds the first of some markers; the caller keeps the tail, so any number of outputs may share one scanner.

    The constructor searches the vocabulary, for tens of milliseconds where it is large. `only_first` are bytes that may
    come before a marker; None where any text may.
    """

    def __init__(self, table: TokenTable, markers: Sequence[bytes], *, only_first: bytes | None = None) -> None:
        self.markers = tuple(markers)
        self._table = table
        self._only_first = only_first
        self._candidates = sorted({token_id for marker in markers for token_id in table.ids_with(marker[-1:])})
        self._crossings: dict[bytes, list[MarkerCrossing]] = {}

    def step(self, tail: bytes, data: bytes) -> FoundMarker | bytes | None:
        """The marker that `data` completes, else the new tail; None where no marker can come any more."""
        text = tail + data
        if self._only_first is not None:
            return self._at_start(text.lstrip(self._only_first))
        place, marker = min(((text.find(one), one) for one in self.markers if one in text), default=(-1, b""))
        if place >= 0:
            return FoundMarker(marker, text[place + len(marker) :])
        return self._tail_of(text)

    def crossings(self, tail: bytes) -> list[MarkerCrossing]:
        """The tokens that would complete a marker behind `tail` and go on behind it."""
        known = self._crossings.get(tail)
        if known is None:
            steps = ((token_id, self.step(tail, self._table[token_id])) for token_id in self._candidates)
            known = [MarkerCrossing(at, found) for at, found in steps if isinstance(found, FoundMarker) and found.rest]
            self._crossings[tail] = known
        return known

    @property
    def tails(self) -> list[bytes]:
        """All possible tails."""
        return list({marker[:size]: None for marker in self.markers for size in range(len(marker))})

    def _at_start(self, text: bytes) -> FoundMarker | bytes | None:
        for marker in self.markers:
            if text.startswith(marker):
                return FoundMarker(marker, text[len(marker) :])
        return text if any(marker.startswith(text) for marker in self.markers) else None

    def _tail_of(self, text: bytes) -> bytes:
        longest = max(map(len, self.markers)) - 1
        for start in range(max(0, len(text) - longest), len(text)):
            if any(marker.startswith(text[start:]) for marker in self.markers):
                return text[start:]
        return b""
