"""Owners take turns, whatever they put and when, as a plain list of all that was put would have it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.admission.fair_queue import FairQueue

# The owner of a thing that is put, or None where the next thing is taken.
STEPS = st.lists(st.none() | st.sampled_from("abcd"), max_size=60)


class Naive:
    """Looks through everything at each step."""

    def __init__(self, *, newest_first: bool = False) -> None:
        self.order = -1 if newest_first else 1
        self.time = 0
        self.things: list[tuple[str, int]] = []
        self.waits_since: dict[str, int] = {}  # by owner: for its turn

    def put(self, owner: str, thing: int) -> None:
        self.time += 1
        if all(other != owner for other, _ in self.things):
            self.waits_since[owner] = self.time
        self.things.append((owner, thing))

    def take(self) -> int:
        self.time += 1
        owner, thing = min(self.things, key=lambda one: (self.waits_since[one[0]], self.order * one[1]))
        self.things.remove((owner, thing))
        self.waits_since[owner] = self.time
        return thing


@given(STEPS, st.booleans())
def test_turns_are_those_of_the_naive_model(steps: list[str | None], newest_first: bool) -> None:
    queue, naive = FairQueue[int](newest_first=newest_first), Naive(newest_first=newest_first)
    for number, owner in enumerate(steps):
        assert bool(queue) == bool(naive.things)
        if owner is not None:
            queue.put(owner, number)
            naive.put(owner, number)
        elif naive.things:
            assert queue.take() == naive.take()
        else:
            with pytest.raises(KeyError):
                queue.take()


@given(st.lists(st.sampled_from("abcd"), max_size=60))
def test_between_two_things_of_one_owner_comes_one_of_each_other(owners: list[str]) -> None:
    queue = FairQueue[tuple[str, int]]()
    for number, owner in enumerate(owners):
        queue.put(owner, (owner, number))
    taken = [queue.take() for _ in owners]
    assert not queue
    assert sorted(taken, key=lambda one: one[1]) == [(owner, number) for number, owner in enumerate(owners)]
    for owner in set(owners):
        own = [at for at, (whose, _) in enumerate(taken) if whose == owner]
        assert [taken[at] for at in own] == sorted(taken[at] for at in own)
        for before, after in pairwise(own):
            between = [whose for whose, _ in taken[before + 1 : after]]
            left = {whose for whose, _ in taken[before + 1 :]} - {owner}
            assert sorted(between) == sorted(left)
