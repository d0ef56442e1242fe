"""Which models make room: those that are used the least, and no more than must go."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from server.serving.eviction import Candidate, Uses


def test_what_is_used_often_stays_and_what_was_used_once_goes() -> None:
    uses = Uses[str]()
    for model in ("often", "often", "often", "once"):
        uses.count(model)
    both = [Candidate("often", 1), Candidate("once", 1)]
    assert uses.choose(both, 1, 0) == ["once"]
    for _ in range(400):  # the uses of long ago count no more
        uses.count("other")
    uses.count("once")
    assert uses.choose(both, 1, 0) == ["often"]


def test_no_more_go_than_must() -> None:
    uses = Uses[str]()
    for model in ("small", "medium", "medium", "large", "large", "large"):
        uses.count(model)
    candidates = [Candidate("small", 1), Candidate("medium", 5), Candidate("large", 9)]
    assert uses.choose(candidates, 0, 1) == ["small"]
    assert uses.choose(candidates, 0, 5) == ["medium"]  # the small one would have gone for nothing
    assert uses.choose(candidates, 0, 6) == ["small", "medium"]
    assert uses.choose(candidates, 0, 9) == ["large"]
    assert uses.choose(candidates, 2, 1) == ["small", "medium"]
    assert uses.choose(candidates, 0, 99) == ["small", "medium", "large"]
    assert uses.choose([], 1, 1) == []


SIZES = (4, 3, 5, 2, 4)  # of five models
MEMORY = 9  # for two or three of them


def num_loads(
    requests: Sequence[int], count: Callable[[int], None], choose: Callable[[Sequence[int], int], Sequence[int]]
) -> int:
    """The loads of models that answer `requests` one after the other; `choose` gets them in the order of their use."""
    present, loads = list[int](), 0
    for model in requests:
        count(model)
        if model in present:
            present.remove(model)
        else:
            loads += 1
            gone = choose(present, sum(SIZES[each] for each in present) + SIZES[model] - MEMORY)
            present = [each for each in present if each not in gone]
        present.append(model)
        assert sum(SIZES[each] for each in present) <= MEMORY
    return loads


@pytest.mark.parametrize("seed", range(5))
def test_fewer_loads_than_by_the_order_of_use(seed: int) -> None:
    """500 requests in a random order, for some models more than for others."""
    requests = random.Random(seed).choices(range(5), weights=(8, 4, 2, 1, 1), k=500)
    uses = Uses[int]()

    def least_used(present: Sequence[int], missing: int) -> Sequence[int]:
        return uses.choose([Candidate(each, SIZES[each]) for each in present], 0, missing)

    def least_recent(present: Sequence[int], missing: int) -> Sequence[int]:
        going = list[int]()
        for each in present:
            if sum(SIZES[other] for other in going) < missing:
                going.append(each)
        return going

    assert num_loads(requests, uses.count, least_used) < 0.95 * num_loads(requests, lambda _: None, least_recent)
