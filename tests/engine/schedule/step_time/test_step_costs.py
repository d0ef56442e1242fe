"""Costs are learned from few steps, follow the machine, and survive a slow step."""

from __future__ import annotations

import random
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.schedule.step_time.step_costs import StepCosts, StepWork


def milliseconds(work: StepWork, scale: float = 1.0) -> float:
    """A device with costs of its own, not quite linear in its rows."""
    rows = 4 + 0.5 * work.num_decode_rows**0.9
    return scale * (rows + 20 * work.num_tiles + work.decode_context / 20_000 + work.tile_context / 300)


def some_work(draw: random.Random) -> StepWork:
    num_rows, num_tiles = draw.choice([1, 8, 20, 64]), draw.choice([0, 0, 1, 2, 4])
    return StepWork(num_rows, num_rows * draw.randrange(1000), num_tiles, num_tiles * draw.randrange(64, 4000))


@settings(max_examples=15)
@given(st.integers(0, 1000), st.sampled_from([0.05, 1.0, 30.0]))
def test_predictions_come_near_within_some_steps(seed: int, scale: float) -> None:
    draw, costs = random.Random(seed), StepCosts()
    for _ in range(150):
        work = some_work(draw)
        costs.learn(work, milliseconds(work, scale) * draw.uniform(0.95, 1.05))
    errors = []
    for _ in range(40):
        work = some_work(draw)
        errors.append(abs(costs.predict(work) / milliseconds(work, scale) - 1))
    assert sorted(errors)[36] < 0.2, errors


def test_one_slow_step_changes_little_and_a_slow_machine_is_followed() -> None:
    draw, costs = random.Random(1), StepCosts()
    for _ in range(150):
        work = some_work(draw)
        costs.learn(work, milliseconds(work))
    work = StepWork(8, 4000, 2, 1500)
    before = costs.predict(work)
    costs.learn(work, 200 * milliseconds(work))
    assert costs.predict(work) < 1.25 * before
    for _ in range(60):
        work = some_work(draw)
        costs.learn(work, milliseconds(work, 3.0))
    assert 0.75 < costs.predict(work) / milliseconds(work, 3.0) < 1.25


def test_what_tiles_cost_is_remembered_while_only_rows_decode() -> None:
    draw, costs = random.Random(2), StepCosts()
    assert not costs.has_seen_tiles
    for _ in range(100):
        work = some_work(draw)
        costs.learn(work, milliseconds(work))
    for length in range(2000):
        work = StepWork(8, 8 * length)
        costs.learn(work, milliseconds(work) * draw.uniform(0.9, 1.1))
    work = StepWork(8, 8000, 2, 1500)
    assert costs.has_seen_tiles
    assert 0.75 < costs.predict(work) / milliseconds(work) < 1.25


def test_streams_that_start_a_few_at_a_time_do_not_mislead_it() -> None:
    """The first steps say little of what rows and tiles cost by themselves, and yet predictions are right soon."""
    draw, costs = random.Random(0), StepCosts()
    works = [StepWork(rows, rows * 33, 4, 128) for rows in (0, 4, 8, 12)]
    works += [StepWork(16, 16 * (33 + step)) for step in range(16)]
    works += [StepWork(16, 16 * (60 + step), 4, 4 * 64 * (step + 1)) for step in range(10)]
    works += [StepWork(16, 16 * (70 + step)) for step in range(100)]
    errors = []
    for work in works:
        measured = milliseconds(work) * draw.uniform(0.97, 1.05)
        errors.append(abs(costs.predict(work) / measured - 1))
        costs.learn(work, measured)
    assert sorted(errors[5:])[-5] < 0.1, errors


@pytest.mark.parametrize("begun", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("slowness", [1, 10])
def test_a_few_parts_of_tiles_tell_what_parts_cost(begun: float, slowness: int) -> None:
    """And what whole tiles cost is not forgotten while only parts are computed, on a machine that becomes slower."""
    draw, costs = random.Random(7), StepCosts()

    def took(work: StepWork, scale: float) -> float:
        tiles = begun * ceil(work.num_tiles) + (1 - begun) * work.num_tiles
        return slowness * scale * (4 + 0.65 * work.num_decode_rows + 42 * tiles)

    def learn(num_tiles: float, scale: float = 1.0) -> None:
        work = StepWork(16, 3200, num_tiles, 100 * num_tiles)
        costs.learn(work, took(work, scale) * draw.uniform(0.97, 1.03))

    def check(scale: float) -> None:
        for share in (0.0, 0.25, 0.5, 0.75, 1.0):
            work = StepWork(16, 3200, share, 100 * share)
            assert costs.predict(work) == pytest.approx(took(work, scale), rel=0.3), share

    for index in range(60):
        learn(index % 3 // 2)
    for index in range(40):
        learn((0, 0.25, 0.5)[index % 3])
    check(1.0)
    for index in range(100):
        learn((0, 0.25, 0.5)[index % 3], 1 + index / 100)
    check(2.0)
