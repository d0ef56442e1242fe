"""Routing policies: which replica gets a request."""

from collections.abc import Sequence
from itertools import count
from typing import Protocol, TypeVar

# A replica may have so many requests more than the least loaded one and still get a request for its prefix. So a prefix
# that everybody asks for comes to be cached by several replicas. The simulation in benchmarks/fleet has it too.
MOST_AHEAD = 8


class Candidate(Protocol):
    """What a policy knows of a replica, such as `Replica`."""

    @property
    def num_open(self) -> int: ...
    def num_cached_blocks(self, blocks: Sequence[int]) -> int: ...


C = TypeVar("C", bound=Candidate)


class RoutingPolicy(Protocol):
    """Chooses one of several replicas for each request."""

    def choose(self, candidates: Sequence[C], blocks: Sequence[int] = ()) -> C:
        """One of at least one candidate, for a prompt of these blocks (`prefix_blocks`)."""
        ...


class RoundRobin:
    """Each replica in turn."""

    def __init__(self) -> None:
        self._turns = count()

    def choose(self, candidates: Sequence[C], blocks: Sequence[int] = ()) -> C:
        return self.in_turn(candidates)[0]

    def in_turn(self, candidates: Sequence[C]) -> Sequence[C]:
        """The candidates, beginning with another one each time."""
        first = next(self._turns) % len(candidates)
        return [*candidates[first:], *candidates[:first]]


class PrefixAffinity(RoundRobin):
    """The replica with the longest cached prefix of the prompt, and of equal ones the least loaded. Where none has a
    prefix, or that one has many more open requests, the least loaded of all.
    """

    def __init__(self, most_ahead: int = MOST_AHEAD) -> None:
        super().__init__()
        self._most_ahead = most_ahead

    def choose(self, candidates: Sequence[C], blocks: Sequence[int] = ()) -> C:
        in_turn = self.in_turn(candidates)
        least = min(in_turn, key=lambda each: each.num_open)
        if not blocks:
            return least
        num_cached, best = max(
            ((each.num_cached_blocks(blocks), each) for each in in_turn), key=lambda pair: (pair[0], -pair[1].num_open)
        )
        return best if num_cached and best.num_open <= least.num_open + self._most_ahead else least
