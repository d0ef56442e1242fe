"""Which replica gets a request."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Protocol, TypeVar

# A replica may have so many requests more than the least loaded one and still get a request for its prefix. So a
# beginning that everybody asks for comes to live on several replicas. The simulation in benchmarks/fleet has it too.
MOST_AHEAD = 8


class Candidate(Protocol):
    """What the choice asks of a replica."""

    @property
    def num_open(self) -> int:
        """Its unfinished requests."""
        ...

    def num_remembered(self, blocks: Sequence[int]) -> int:
        """How many blocks at the beginning of these it has met."""
        ...


C = TypeVar("C", bound=Candidate)


class Choice:
    """Chooses the replica that knows the longest beginning of a prompt, or else the least loaded one.

    Of several that know as much, the least loaded one is taken, and of those each in turn.
    """

    def __init__(self, most_ahead: int = MOST_AHEAD) -> None:
        self._most_ahead = most_ahead
        self._turns = count()

    def of(self, candidates: Sequence[C], blocks: Sequence[int] = ()) -> C:
        """One of the candidates, of which there is at least one.

        Args:
            blocks: of the prompt (`prefix_blocks`); none where no replica is better than another.
        """
        first = next(self._turns) % len(candidates)
        in_turn = [*candidates[first:], *candidates[:first]]
        least = min(in_turn, key=lambda candidate: candidate.num_open)
        if not blocks:
            return least
        known, best = max(
            ((candidate.num_remembered(blocks), candidate) for candidate in in_turn),
            key=lambda pair: (pair[0], -pair[1].num_open),
        )
        return best if known and best.num_open <= least.num_open + self._most_ahead else least
