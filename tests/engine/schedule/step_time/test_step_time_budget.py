"""On a device whose steps take a known time, streams beside prompts keep the gap that was promised."""

from __future__ import annotations

import random
from itertools import pairwise
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.schedule.step_plan import StepPlan
from engine.schedule.step_time.step_costs import StepWork
from engine.schedule.step_time.step_time_budget import StepTimeBudget
from tests.fakes.runner import expected_output
from tests.fakes.script import World

NUM_STREAMS = 4
PROMPT = list(range(1, 39)) * 14  # nine tiles


class Device:
    """Steps of known cost, with some noise."""

    def __init__(self, tile: float, row: float, context: float, seed: int, *, is_flat: bool = False) -> None:
        """Makes a device.

        Args:
            is_flat: whether a tile costs the same however full it is.
        """
        self.tile, self.row, self.context, self.is_flat = tile, row, context, is_flat
        self.draw = random.Random(seed)
        self.steps: list[tuple[StepWork, float]] = []  # what each step did, and its milliseconds

    def milliseconds(self, work: StepWork) -> float:
        num_tiles = ceil(work.num_tiles) if self.is_flat else work.num_tiles
        tiles = self.tile * num_tiles + self.context * work.tile_context / 1024
        return 2 + self.row * work.num_decode_rows**0.9 + tiles

    def __call__(self, plan: StepPlan) -> float:
        duration = self.milliseconds(plan.work) * self.draw.uniform(0.97, 1.03)
        self.steps.append((plan.work, duration))
        return duration / 1000


def crowd(world: World, prompts_of: str = "") -> None:
    """Streams, and prompts of a tenant that arrive beside them."""
    streams = [world.request(f"s{i}", [i + 1], arrival=i, max_tokens=120, ignore_eos=True) for i in range(NUM_STREAMS)]
    prompts = {
        5 + 4 * i: [
            world.request(f"p{i}", [i + 1, *PROMPT], arrival=9 + i, max_tokens=1, ignore_eos=True, tenant=prompts_of)
        ]
        for i in range(9)
    }
    world.run({0: streams, **prompts})
    assert world.outcomes["s0"].token_ids == expected_output([1], 0, 121, ignore_eos=True)
    assert world.outcomes["p3"].token_ids == expected_output([4, *PROMPT], 0, 534, ignore_eos=True)


def world_of(device: Device, target_gap: float, grain: int | None = None) -> World:
    return World(
        num_slots=8, num_pages=1300, page_size=4, max_model_len=600, num_tiles=6, prefix_caching=False,
        target_gap=target_gap, duration=device, grain=grain,
    )  # fmt: skip


@settings(max_examples=5)
@given(st.floats(2, 20), st.floats(0.1, 1.5), st.floats(0, 8), st.integers(0, 99), st.booleans())
def test_the_gap_stays_under_a_target_that_is_feasible(
    tile: float, row: float, context: float, seed: int, overlap: bool
) -> None:
    device = Device(tile, row, context, seed)
    # One tile fits at the longest context; whether more do is for the pace to find out.
    target = 1.3 * device.milliseconds(StepWork(8, 0, 1, 600))
    world = world_of(device, target)
    world.overlap = overlap
    crowd(world)
    mixed = [(work, took) for work, took in device.steps if work.num_decode_rows and work.num_tiles][15:]
    late = [took for _, took in mixed if took > target]
    assert len(mixed) >= 10  # of 81 tiles; where rows are dear and tiles are cheap, three of them share a step
    assert world.scheduler.step_time.step_time_error < 0.1
    assert len(late) <= 0.02 * len(mixed) + 1, (target, late)
    # The budget is used: where the next tile would clearly have fitted, it was taken.
    idle = [work for work, _ in mixed[:-20] if device.milliseconds(work.with_tile(600)) < 0.6 * target]
    assert len(idle) <= 0.1 * len(mixed) + 4, (target, idle)


def test_a_target_that_is_not_feasible_gives_each_step_one_tile_and_none_gives_all() -> None:
    steps = {}
    for target in (5.0, 0.0):
        device = Device(tile=20, row=1, context=0, seed=0)
        crowd(world_of(device, target))
        steps[target] = [work.num_tiles for work, _ in device.steps if work.num_tiles and work.num_decode_rows]
    assert set(steps[5.0]) == {1}
    assert max(steps[0.0]) == 6


@pytest.mark.parametrize("tenant", ["", "guest"])
@pytest.mark.parametrize("target", [5.0, 12.0, 20.0])
def test_a_step_keeps_its_target_or_takes_at_most_twice_as_long_as_its_rows(target: float, tenant: str) -> None:
    """Where the device computes no padding, although a whole tile would take three times as long as the streams do.

    And the prompts get on: their steps take at most twice the time that they take with whole tiles.
    """
    prompts_ms = {}
    for grain in (16, None):
        device = Device(tile=20, row=1.5, context=0, seed=0)
        crowd(world_of(device, target, grain=grain), prompts_of=tenant)
        mixed = [(work, took) for work, took in device.steps if work.num_decode_rows and work.num_tiles]
        prompts_ms[grain] = sum(took for _, took in mixed)
        late = [
            took for work, took in mixed[15:]
            if took > 1.05 * max(target, 2 * device.milliseconds(StepWork(work.num_decode_rows)))
        ]  # fmt: skip
        assert len(mixed) >= 25
        if grain is None:
            assert len(late) > 0.9 * len(mixed[15:])
        else:
            assert len(late) <= 0.02 * len(mixed) + 1, late
            assert min(work.num_tiles for work, _ in mixed) < 1
    assert prompts_ms[16] <= 2 * prompts_ms[None]


@pytest.mark.parametrize("tenant", ["", "guest"])
def test_a_tile_that_costs_the_same_however_full_it_is_stays_whole(tenant: str) -> None:
    device = Device(tile=20, row=1.5, context=0, seed=0, is_flat=True)
    crowd(world_of(device, 12.0, grain=16), prompts_of=tenant)
    shares = [work.num_tiles for work, _ in device.steps if work.num_tiles]
    # Of each of the nine prompts the last tile has 21 tokens. Some pieces tell at first that they are no cheaper.
    assert shares.count(1) >= 70, shares
    assert len(shares) <= 9 * 9 + 4, shares


@pytest.mark.parametrize(("num_streams", "num_of_guest"), [(4, 3), (3, 4), (2, 5)])
def test_the_rows_of_a_guest_count_as_what_it_takes_of_others(num_streams: int, num_of_guest: int) -> None:
    """Who has many streams may not lengthen the steps the more for it, or become the host of the house."""
    device = Device(tile=8, row=1.5, context=0, seed=0)
    world = world_of(device, 2.0, grain=16)
    streams = [world.request(f"s{i}", [i + 1], max_tokens=200, ignore_eos=True) for i in range(num_streams)]
    flood = [
        world.request(f"f{i}", [i + 7], max_tokens=200, ignore_eos=True, tenant="guest") for i in range(num_of_guest)
    ]
    prompts = {
        20 * (i + 1): [world.request(f"p{i}", [i + 1, *PROMPT], max_tokens=1, ignore_eos=True, tenant="guest")]
        for i in range(6)
    }
    # What the streams take alone is learned before the flood comes.
    world.run({0: streams, 15: flood, **prompts})
    num_rows = num_streams + num_of_guest
    mixed = [(work, took) for work, took in device.steps if work.num_decode_rows == num_rows and work.num_tiles][15:]
    limit = 1.6 * device.milliseconds(StepWork(num_streams))
    assert len(mixed) >= 10
    for work, took in mixed:
        fewest = work.num_tiles == 0.25  # pieces that a step takes, however long that is
        assert fewest or took <= 1.1 * limit, (work, took, limit)


@pytest.mark.parametrize("tile", [4, 20])
def test_less_urgent_prompts_lengthen_a_step_by_less_than_half(tile: float) -> None:
    """Or have a piece in it, although whole tiles keep the target, which other prompts make use of."""
    most_tiles = {}
    for priority in (0, 1):
        device = Device(tile=tile, row=1.5, context=0, seed=0)
        world = world_of(device, 80.0, grain=16)
        streams = [world.request(f"s{i}", [i + 1], max_tokens=200, ignore_eos=True) for i in range(NUM_STREAMS)]
        prompts = [
            world.request(f"p{i}", [i + 1, *PROMPT], max_tokens=1, ignore_eos=True, priority=priority) for i in range(3)
        ]
        world.run({0: streams, 20: prompts})
        mixed = [(work, took) for work, took in device.steps if work.num_decode_rows == NUM_STREAMS and work.num_tiles]
        most_tiles[priority] = max(work.num_tiles for work, _ in mixed)
        if priority:
            limit = 1.4 * device.milliseconds(StepWork(NUM_STREAMS))
            assert all(work.num_tiles == 0.25 or took <= 1.1 * limit for work, took in mixed[5:])
    assert most_tiles[1] <= 1 < 3 <= most_tiles[0]


def test_beside_a_single_stream_of_somebody_else_all_rows_count() -> None:
    """Twice what all six rows take leaves room for a whole tile, and twice what the one row takes does not."""
    device = Device(tile=8, row=1.5, context=0, seed=0)
    world = world_of(device, 2.0, grain=16)
    streams = [
        world.request(f"s{i}", [i + 1], max_tokens=150, ignore_eos=True, tenant="" if i else "other") for i in range(6)
    ]
    world.run({0: streams, 20: [world.request("p", PROMPT, max_tokens=1, ignore_eos=True)]})
    shares = [work.num_tiles for work, _ in device.steps if work.num_decode_rows and work.num_tiles > 0.25]
    assert shares[1:-1] == [1] * 7


def test_predictions_hold_through_bursts_of_prompts_and_long_stretches_without() -> None:
    device, draw, pace = Device(12, 0.65, 4, seed=5), random.Random(5), StepTimeBudget(50.0)
    for burst in range(3):
        for num_tiles, count in ((4, 3), (0, 40), (1, 60), (2, 20), (0, 300)):
            for index in range(count):
                num_rows = min(16, 1 + index) if not burst else 16
                work = StepWork(num_rows, num_rows * 50 * (burst + 1), num_tiles, num_tiles * 64 * (1 + index % 16))
                pace.learn(work, device.milliseconds(work) * draw.uniform(0.97, 1.05) / 1000)
            if num_tiles == 1:
                pace.learn(work, 3.0)  # the machine did something else
        assert pace.step_time_error < 0.05, burst


def test_a_prompt_alone_has_no_limit() -> None:
    device = Device(tile=20, row=1, context=0, seed=0)
    world = world_of(device, 5.0)
    world.run({0: [world.request("p", PROMPT, max_tokens=2, ignore_eos=True)]})
    assert [work.num_tiles for work, _ in device.steps] == [6, 3, 0]


def test_the_same_tokens_come_whatever_the_target() -> None:
    outcomes = []
    for target in (0.0, 30.0, 60.0):
        world = world_of(Device(tile=9, row=1, context=1, seed=3), target, grain=16 if target == 30.0 else None)
        crowd(world)
        outcomes.append({name: outcome.token_ids for name, outcome in world.outcomes.items()})
    assert all(before == after for before, after in pairwise(outcomes))


def test_it_tells_how_far_predictions_are_off_and_what_prompts_take() -> None:
    pace = StepTimeBudget()
    assert (pace.step_time_error, pace.prompt_share) == (0.0, 0.0)
    for _ in range(100):
        pace.learn(StepWork(8), 0.010)
        pace.learn(StepWork(8, 0, 2, 128), 0.040)
    assert pace.step_time_error < 0.1
    assert 0.55 < pace.prompt_share < 0.65  # 30 of every 50 ms
    for _ in range(30):
        pace.learn(StepWork(8), 0.001)
        pace.learn(StepWork(8), 1.0)
    assert pace.step_time_error > 0.3


def test_a_machine_that_becomes_slower_bit_by_bit_is_followed_through_steps_of_decoding_alone() -> None:
    pace, work, milliseconds = StepTimeBudget(50.0), StepWork(16, 3200), 10.0
    for _ in range(300):
        milliseconds *= 1.005
        pace.learn(work, milliseconds / 1000)
    assert pace.costs.predict(work) == pytest.approx(milliseconds, rel=0.1)
    for _ in range(30):  # and a jump soon
        pace.learn(work, 1.5 * milliseconds / 1000)
    assert pace.costs.predict(work) == pytest.approx(1.5 * milliseconds, rel=0.2)


def test_few_of_the_usual_steps_are_work_for_the_host_and_all_with_prompts_are_learned_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pace, learned = StepTimeBudget(50.0), list[StepWork]()
    learn = pace.costs.learn

    def learn_and_note(work: StepWork, milliseconds: float) -> None:
        learned.append(work)
        learn(work, milliseconds)

    monkeypatch.setattr(pace.costs, "learn", learn_and_note)
    usual, with_prompt = StepWork(16, 3200), StepWork(16, 3200, 1, 500)
    for step in range(100):
        pace.learn(with_prompt if step % 10 == 9 else usual, 0.010 if step % 10 < 9 else 0.040)
    assert learned.count(with_prompt) == 10
    assert 20 <= learned.count(usual) <= 30


@settings(max_examples=10)
@given(st.integers(0, 1000))
def test_steps_that_now_and_then_take_longer_do_not_move_the_predictions_of_the_others(seed: int) -> None:
    pace, work, draw = StepTimeBudget(50.0), StepWork(16, 3200), random.Random(seed)
    predicted = []
    for step in range(600):
        late = draw.uniform(0.1, 0.28) if draw.random() < 0.15 else 0.0
        pace.learn(work, 0.010 * (draw.uniform(0.97, 1.03) + late))
        if step >= 200:
            predicted.append(pace.costs.predict(work))
    assert sum(predicted) / len(predicted) == pytest.approx(10.0 * (1 + 0.15 * 0.19), rel=0.04)


def test_the_pace_learns_from_steps_that_only_decode_while_nobody_asks_for_a_budget():
    world = World(max_model_len=200, num_pages=60, duration=lambda plan: 0.01)
    world.run({0: [world.request("a", [1], max_tokens=100, ignore_eos=True)]})
    assert world.scheduler.step_time.costs.predict(StepWork(1, 50)) == pytest.approx(10, rel=0.05)
