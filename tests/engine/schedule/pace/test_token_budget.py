"""A budget gives as many tiles as fit, by number and by time, and never none."""

from __future__ import annotations

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.schedule.pace.step_costs import StepCosts
from engine.schedule.pace.step_work import StepWork
from engine.schedule.pace.token_budget import TokenBudget

TILE = 64


class KnownCosts(StepCosts):
    """Each step costs 2 ms, and 3 ms a tile, and 1 ms for 256 tokens of a tile's context."""

    def __init__(self) -> None:
        super().__init__()
        self.has_seen_tiles = True

    def predict(self, work: StepWork) -> float:
        return 2 + 3 * work.num_tiles + work.tile_context / 256


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(2, 600), st.integers(0, 2000)), min_size=1, max_size=5),
    st.integers(TILE, 700),
    st.floats(1, 90) | st.just(inf),
)
def test_it_is_spent_like_the_naive_model_spends_it(
    prompts: list[tuple[int, int]], num_tokens: int, limit: float
) -> None:
    costs = KnownCosts()
    budget = TokenBudget(num_tokens, TILE, StepWork(num_decode_rows=3), limit, costs)
    tile_ends: list[int] = []
    wants_more = False
    for wanted, start in prompts:
        taken = budget.take(wanted, start)
        ends = [start + min(first + TILE, wanted) for first in range(0, wanted, TILE)]
        expected = 0
        while expected < len(ends) and (len(tile_ends) + 1) * TILE <= num_tokens:
            grown = [*tile_ends, ends[expected]]
            if len(grown) > 1 and 2 + 3 * len(grown) + sum(grown) / 256 > limit:
                break
            tile_ends, expected = grown, expected + 1
        assert taken == min(expected * TILE, wanted)
        wants_more |= taken < wanted
        assert budget.is_exhausted == wants_more
    assert budget.work == StepWork(3, 0, len(tile_ends), sum(tile_ends))
    assert tile_ends, "prompts starve"


@settings(max_examples=60)
@given(st.integers(2, 200), st.integers(0, 2000), st.floats(1, 30))
def test_a_guests_first_tile_is_cut_to_the_pieces_that_keep_its_limit(wanted: int, start: int, limit: float) -> None:
    others = StepWork(2, 7)
    limits = {others: limit}
    budget = TokenBudget(10 * TILE, TILE, StepWork(3), 0.0, KnownCosts(), grain=16, guest_limit=limits.__getitem__)
    taken = budget.take(wanted, start, others)

    def milliseconds(count: int) -> float:
        share = -(-count // 16) / 4
        return 2 + 3 * share + (start + count) * share / 256

    pieces = [count for count in (16, 32, 48, min(TILE, wanted)) if count <= wanted]
    assert taken == max([pieces[0] if pieces else wanted, *(c for c in pieces if milliseconds(c) <= limit)])
    assert budget.is_exhausted == (taken < wanted)
    share = -(-taken // 16) / 4
    assert budget.work == StepWork(3, 0, share, (start + taken) * share)


def test_the_first_tile_is_whole_where_nothing_is_known_or_the_device_pads_or_nobody_else_waits() -> None:
    def limit(others: StepWork) -> float:
        return 0.1

    unknown = TokenBudget(10 * TILE, TILE, StepWork(1, 5), 0.1, StepCosts(), grain=16, guest_limit=limit)
    padding = TokenBudget(10 * TILE, TILE, StepWork(1, 5), 0.1, KnownCosts(), guest_limit=limit)
    of_the_house = TokenBudget(10 * TILE, TILE, StepWork(1, 5), 0.1, KnownCosts(), grain=16, guest_limit=limit)
    unlimited = TokenBudget(10 * TILE, TILE, StepWork(1, 5), 0.1, KnownCosts(), grain=16)
    others = StepWork(1, 5)
    assert [unknown.take(300, 0, others), padding.take(300, 0, others)] == [TILE, TILE]
    assert of_the_house.take(300, 0) == TILE
    assert unlimited.take(300, 0, others) == TILE


def test_a_single_token_is_a_decode_row_and_costs_nothing() -> None:
    budget = TokenBudget(TILE, TILE, StepWork(), 0.0, KnownCosts())
    assert budget.take(1, 500) == 1
    assert budget.work == StepWork(1, 500)
    assert budget.take(80, 0) == TILE
    assert budget.is_exhausted


def test_before_a_tile_was_seen_a_step_with_a_limit_gets_one() -> None:
    budget = TokenBudget(10 * TILE, TILE, StepWork(1, 5), 1000.0, StepCosts())
    assert budget.take(300, 0) == TILE
