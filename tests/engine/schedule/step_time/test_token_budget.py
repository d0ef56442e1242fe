"""A budget gives as many tiles as fit, by number and by time, and never none."""

from __future__ import annotations

from math import ceil, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.schedule.step_time.step_costs import StepCosts, StepWork
from engine.schedule.step_time.token_budget import TokenBudget

TILE = 64


class KnownCosts(StepCosts):
    """Each step costs 2 ms, and 3 ms a tile, and 1 ms for 256 tokens of a tile's context."""

    def __init__(self, begun: float = 0.0, row: float = 0.0) -> None:
        """Makes costs.

        Args:
            begun: the share of a tile's 3 ms that a part of it takes too, however small it is.
            row: milliseconds of a decode row.
        """
        super().__init__()
        self.has_seen_tiles = True
        self._begun, self._row = begun, row

    def predict(self, work: StepWork) -> float:
        tiles = self._begun * ceil(work.num_tiles) + (1 - self._begun) * work.num_tiles
        return 2 + self._row * work.num_decode_rows + 3 * tiles + work.tile_context / 256


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

    def limit_beside(beside: StepWork, is_guest: bool) -> float:
        assert (beside, is_guest) == (others, True)
        return limit

    budget = TokenBudget(10 * TILE, TILE, StepWork(3), 0.0, KnownCosts(), grain=16, first_limit=limit_beside)
    taken = budget.take(wanted, start, others)

    def milliseconds(count: int) -> float:
        share = -(-count // 16) / 4
        return 2 + 3 * share + (start + count) * share / 256

    pieces = [count for count in (16, 32, 48, min(TILE, wanted)) if count <= wanted]
    assert taken == max([pieces[0] if pieces else wanted, *(c for c in pieces if milliseconds(c) <= limit)])
    assert budget.is_exhausted == (taken < wanted)
    share = -(-taken // 16) / 4
    assert budget.work == StepWork(3, 0, share, (start + taken) * share)


@settings(max_examples=200)
@given(
    st.integers(2, 200), st.integers(0, 500), st.floats(0, 12), st.floats(0, 1), st.floats(0, 1),
    st.integers(1, 16), st.booleans(),
)  # fmt: skip
def test_the_first_tile_is_cut_only_where_that_is_worth_it(
    wanted: int, start: int, target: float, begun: float, row: float, num_rows: int, is_guest: bool
) -> None:
    """Beside streams of its own tenant no step spends more than twice the time for each token of a prompt."""
    costs, rows = KnownCosts(begun, row), StepWork(num_rows)
    others = StepWork(max(num_rows // 2, 1)) if is_guest else None

    def limit_beside(beside: StepWork, is_guest: bool) -> float:
        return max(target, 2 * costs.predict(beside))

    def milliseconds(count: int) -> float:
        share = -(-count // 16) / 4
        return costs.predict(rows.with_tile(start + count, share))

    budget = TokenBudget(10 * TILE, TILE, rows, target, costs, grain=16, first_limit=limit_beside)
    taken = budget.take(wanted, start, others)
    first = min(wanted, TILE)
    if taken >= first:
        return
    whole, limit = milliseconds(first), limit_beside(others or rows, is_guest)
    assert taken >= 16
    assert taken % 16 == 0
    assert whole > limit
    without = costs.predict(rows)
    beside = without if is_guest else 0.0
    assert (milliseconds(taken) - beside) / taken <= 2 * (whole - beside) / first + 1e-9
    if milliseconds(taken) > limit:  # then no smaller one keeps it at that price, and a third of the tile is saved
        assert milliseconds(taken) - without <= 2 / 3 * (whole - without) + 1e-9
        fewer = [count for count in (16, 32, 48) if count < taken]
        assert all((milliseconds(count) - beside) / count > 2 * (whole - beside) / first for count in fewer[-1:])
    else:
        assert min(taken + 16, first) == first or milliseconds(taken + 16) > limit


@settings(max_examples=100)
@given(st.integers(2, 200), st.integers(0, 100), st.floats(0, 12), st.floats(0, 1), st.integers(1, 16), st.booleans())
def test_where_parts_of_a_tile_cost_their_part_no_step_is_a_piece_longer_than_its_limit(
    wanted: int, start: int, target: float, row: float, num_rows: int, is_guest: bool
) -> None:
    costs, rows = KnownCosts(row=row), StepWork(num_rows)
    others = StepWork(max(num_rows // 2, 1)) if is_guest else None
    limit = max(target, 2 * costs.predict(others or rows))
    budget = TokenBudget(TILE, TILE, rows, target, costs, grain=16, first_limit=lambda *_: limit)
    assert budget.take(wanted, start, others) >= min(wanted, 16)
    piece = rows.with_tile(start + TILE, 0.25)
    assert costs.predict(budget.work) <= max(limit, costs.predict(rows)) + costs.predict(piece) - costs.predict(rows)


@settings(max_examples=60)
@given(st.integers(2, 200), st.integers(0, 500), st.floats(0, 12), st.integers(1, 16), st.booleans())
def test_a_tile_that_costs_the_same_however_full_it_is_stays_whole(
    wanted: int, start: int, target: float, num_rows: int, is_guest: bool
) -> None:
    class Flat(KnownCosts):
        def predict(self, work: StepWork) -> float:
            return 2 + 0.2 * work.num_decode_rows + 3 * ceil(work.num_tiles)

    costs, rows = Flat(), StepWork(num_rows)
    budget = TokenBudget(TILE, TILE, rows, target, costs, grain=16, first_limit=lambda *_: target)
    assert budget.take(wanted, start, StepWork(1) if is_guest else None) == min(wanted, TILE)


def test_the_first_tile_is_whole_where_nothing_is_known_or_the_device_pads_or_there_is_no_limit() -> None:
    def limit(beside: StepWork, is_guest: bool) -> float:
        return 0.1

    unknown = TokenBudget(10 * TILE, TILE, StepWork(1, 5), 0.1, StepCosts(), grain=16, first_limit=limit)
    padding = TokenBudget(10 * TILE, TILE, StepWork(1, 5), 0.1, KnownCosts(), first_limit=limit)
    unlimited = TokenBudget(10 * TILE, TILE, StepWork(1, 5), 0.1, KnownCosts(), grain=16)
    others = StepWork(1, 5)
    assert [unknown.take(300, 0, others), padding.take(300, 0, others)] == [TILE, TILE]
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


@pytest.mark.parametrize(("patient_limit", "expected"), [(0.0, 16), (2.8, 16), (3.6, 32), (50.0, 150), (inf, 150)])
def test_a_text_that_is_patient_has_what_its_limit_allows_and_at_least_a_piece(
    patient_limit: float, expected: int
) -> None:
    """Decode rows alone take 2 ms, a piece of 16 tokens 0.75 ms more."""
    budget = TokenBudget(10 * TILE, TILE, StepWork(3), 50.0, KnownCosts(), grain=16, patient_limit=patient_limit)
    assert budget.take(150, 0, is_patient=True) == expected
    if expected < 150:
        assert budget.take(150, 0, is_patient=True) == 0
    assert budget.take(150, 0) == 150, "another prompt has the other limit"


def test_a_text_that_is_patient_has_no_more_than_a_prompt() -> None:
    budget = TokenBudget(10 * TILE, TILE, StepWork(3), 2.8, KnownCosts(), grain=16, patient_limit=50.0)
    assert budget.take(150, 0, is_patient=True) == 16
