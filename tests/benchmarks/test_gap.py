"""Every target is measured in turn, over the time in which prompts are computed beside the streams."""

from __future__ import annotations

import argparse
from collections import Counter

import pytest

from benchmarks import gap
from benchmarks.bare.simulated_device import SimulatedEngine
from benchmarks.gap import Burst, measure, print_burst
from engine.interface.config import TILE_SIZE, EngineConfig
from engine.schedule.step_plan import StepPlan

STEP_SECONDS = 0.002


async def test_each_target_has_a_line_in_each_round_and_holds_in_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Streams that would last for four seconds, so that they do not end before the prompts come to a busy machine.
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=128, max_model_len=2048, num_pages=600, page_size=16)
    engine = SimulatedEngine(config, step_seconds=STEP_SECONDS)
    options = argparse.Namespace(targets=[0.0, 1.0], streams=2, prompts=2, prompt_tokens=200, rounds=4, seed=0)
    longest: Counter[float] = Counter()  # the most tokens of prompts in one step, by its target
    schedule, learn = engine.scheduler.schedule, engine.scheduler.learn

    def watch() -> StepPlan | None:
        plan, target = schedule(), engine.scheduler.step_time.target_gap
        if plan is not None and plan.work.num_decode_rows:  # else nobody waits for a next token
            longest[target] = max(longest[target], sum(count for count in plan.num_tokens if count > 1))
        return plan

    def print_and_forget(target: float, result: Burst) -> None:
        if not printed:
            longest.clear()  # of the first round, in which costs are learned
        print_burst(target, result)
        printed.append(capsys.readouterr().out)

    printed: list[str] = []
    monkeypatch.setattr(engine.scheduler, "schedule", watch)
    # What a busy machine measures would tell something else: a step that begins late seems short.
    monkeypatch.setattr(engine.scheduler, "learn", lambda plan, seconds: learn(plan, STEP_SECONDS))
    monkeypatch.setattr(gap, "print_burst", print_and_forget)
    await measure(engine, options)
    assert [line.partition(": gap p50")[0] for line in printed] == 4 * ["target     0 ms", "target     1 ms"]
    # A step of 2 ms never fits into 1 ms, so that one tile is in it; without a target a step takes what it may.
    assert longest[1.0] <= TILE_SIZE < longest[0.0]


def test_a_line_tells_quantiles_and_rates(capsys: pytest.CaptureFixture[str]) -> None:
    print_burst(50.0, Burst([*[10.0] * 98, 30.0, 40.0], [100.0, 300.0], 7, 1234.5, 0.05))
    line = capsys.readouterr().out
    assert "target    50 ms: gap p50   10.0  p99   30.1  max   40.0 ms; first token mean      200" in line
    assert "7 steps, 1,234 tokens/s, predictions off by 5%" in line
