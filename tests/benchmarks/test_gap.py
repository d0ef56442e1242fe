"""Every target is measured in turn, over the time in which prompts are computed beside the streams."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

import pytest

from benchmarks import gap
from benchmarks.gap import measure
from benchmarks.microbenchmarks.simulated_device import SimulatedEngine
from engine.interface.config import TILE_SIZE, EngineConfig
from engine.schedule.step_plan import StepPlan

STEP_SECONDS = 0.002


def test_each_target_is_measured_in_each_round_and_holds_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # Streams that would last for four seconds, so that they do not end before the prompts come to a busy machine.
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=128, max_model_len=2048, num_pages=600, page_size=16)
    engine = SimulatedEngine(config, step_seconds=STEP_SECONDS)
    options = argparse.Namespace(
        targets=[0.0, 1.0], streams=2, prompts=2, prompt_tokens=200, rounds=4, seed=0, max_others=1.0
    )
    longest: Counter[float] = Counter()  # the most tokens of prompts in one step, by its target
    schedule, learn = engine.scheduler.schedule, engine.scheduler.learn

    def watch() -> StepPlan | None:
        plan, target = schedule(), engine.scheduler.step_time.target_gap
        if plan is not None and plan.work.num_decode_rows:  # else nobody waits for a next token
            longest[target] = max(longest[target], sum(count for count in plan.num_tokens if count > 1))
        return plan

    async def burst(*arguments: Any) -> dict[str, float]:
        bursts.append(engine.scheduler.step_time.target_gap)
        if len(bursts) == 3:
            longest.clear()  # of the first round, in which costs are learned
        return await original(*arguments)

    bursts, original = list[float](), gap.burst
    # What a busy machine measures would tell something else: a step that begins late seems short.
    monkeypatch.setattr(engine.scheduler, "learn", lambda plan, seconds: learn(plan, STEP_SECONDS))
    monkeypatch.setattr(engine.scheduler, "schedule", watch)
    monkeypatch.setattr("benchmarks.gap.burst", burst)
    turns = measure(engine, options)
    assert [turn.contender for turn in turns] == ["1 ms", "0 ms", "0 ms", "1 ms"] * 2
    assert bursts == [0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0]
    for turn in turns:
        assert 0 <= turn.figures["gap p50"] <= turn.figures["gap p99"] <= turn.figures["gap max"]
        assert turn.figures["tok/s"] > 0
        assert turn.figures["steps"] > 0
    # A step of 2 ms never fits into 1 ms, so that one tile is in it; without a target a step takes what it may.
    assert longest[1.0] <= TILE_SIZE < longest[0.0]
