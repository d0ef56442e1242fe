from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from server.router.policies import MOST_AHEAD, PrefixAffinity
from server.router.records.prefixes import BLOCK_BYTES, MAX_BLOCKS, PrefixIndex, prefix_blocks

LONG = "The harbour master keeps a log of every tide. " * 40


@dataclass(eq=False)
class Candidate:
    num_open: int = 0
    prefixes: PrefixIndex = field(default_factory=PrefixIndex)

    def num_cached_blocks(self, blocks: Sequence[int]) -> int:
        return self.prefixes.match(blocks)


def common(one: dict[str, Any], other: dict[str, Any], tenants: tuple[str, str] = ("", "")) -> int:
    """How many blocks two requests have in common."""
    known = PrefixIndex()
    known.add(prefix_blocks(one, tenants[0]))
    return known.match(prefix_blocks(other, tenants[1]))


def test_without_a_known_prefix_the_least_loaded_replicas_take_turns() -> None:
    candidates, policy = [Candidate(3), Candidate(1), Candidate(1)], PrefixAffinity()
    taken = Counter(candidates.index(policy.choose(candidates)) for _ in range(30))
    assert taken.keys() == {1, 2}
    assert min(taken.values()) >= 10


def test_a_prefix_goes_where_it_was_until_that_replica_is_too_far_ahead() -> None:
    candidates, policy = [Candidate(), Candidate()], PrefixAffinity()
    blocks = prefix_blocks({"prompt": LONG}, "")
    candidates[1].prefixes.add(blocks)
    for num_open in range(MOST_AHEAD + 1):
        candidates[1].num_open = num_open
        assert policy.choose(candidates, blocks) is candidates[1]
    candidates[1].num_open = MOST_AHEAD + 1
    assert policy.choose(candidates, blocks) is candidates[0]


def test_the_longest_known_beginning_wins_and_of_equal_ones_the_least_loaded() -> None:
    short, long = prefix_blocks({"prompt": LONG[:600]}, ""), prefix_blocks({"prompt": LONG}, "")
    candidates, policy = [Candidate(0), Candidate(2), Candidate(1)], PrefixAffinity()
    candidates[0].prefixes.add(short)
    candidates[1].prefixes.add(long)
    assert policy.choose(candidates, long) is candidates[1]
    candidates[2].prefixes.add(long)
    assert policy.choose(candidates, long) is candidates[2]


def test_equal_beginnings_share_blocks_on_every_route() -> None:
    whole = len(LONG) // BLOCK_BYTES
    assert common({"prompt": LONG + "a"}, {"prompt": LONG + "b", "seed": 3}) == whole
    assert common({"prompt": LONG}, {"prompt": [LONG, "more"]}) == whole
    assert common({"prompt": list(range(300))}, {"prompt": [*range(290), 7]}) >= 3
    chat = [{"role": "system", "content": LONG}, {"role": "user", "content": "a" * 300}]
    assert common({"messages": chat}, {"messages": [chat[0], {"role": "user", "content": "b" * 300}]}) == whole
    assert common({"system": LONG, "messages": []}, {"system": LONG, "messages": [chat[1]]}) == whole
    assert common({"input": LONG, "instructions": LONG}, {"input": "x" * 500, "instructions": LONG}) == whole


@pytest.mark.parametrize("field", ["model", "cache_salt"])
def test_what_shares_no_cache_shares_no_block(field: str) -> None:
    assert common({"prompt": LONG, field: "a"}, {"prompt": LONG, field: "b"}) == 0
    assert common({"prompt": LONG}, {"prompt": LONG}, ("one", "two")) == 0


def test_what_is_looked_at_is_bounded_whatever_comes() -> None:
    huge = {"messages": [{"role": "user", "content": "x" * 50_000} for _ in range(50)]}
    assert len(prefix_blocks(huge, "")) == MAX_BLOCKS
    for odd in ({}, {"prompt": 5}, {"messages": "text"}, {"messages": [None, 3]}, {"prompt": [[1, 2], [3]]}):
        assert prefix_blocks(odd, "") == []


def test_the_beginnings_that_were_not_met_for_longest_are_forgotten_and_of_each_its_end_first() -> None:
    known = PrefixIndex(max_blocks=6)
    known.add([1, 2, 3, 4])
    known.add([10, 11, 12])
    assert len(known) == 6
    assert known.match([1, 2, 3, 4]) == 3
    assert known.match([10, 11, 12, 13]) == 3
    known.clear()
    assert known.match([10]) == 0
