"""Every target is measured in turn, over the time in which prompts are computed beside the streams."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.bare.simulated_device import SimulatedEngine
from benchmarks.gap import Burst, measure, print_burst
from engine.border.config import EngineConfig


async def test_each_target_has_a_line_in_each_round(capsys: pytest.CaptureFixture[str]) -> None:
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=128, max_model_len=256, num_pages=80, page_size=16)
    engine = SimulatedEngine(config, step_seconds=0.002)
    options = argparse.Namespace(targets=[0.0, 1.0], streams=2, prompts=2, prompt_tokens=200, rounds=4, seed=0)
    await measure(engine, options)
    lines = capsys.readouterr().out.splitlines()
    throughput, limited = (
        [line for line in lines if line.startswith(f"target     {target} ms: gap p50")] for target in (0, 1)
    )
    assert len(throughput) == len(limited) == len(lines) / 2 == 4
    # Four tiles of each prompt: two in a step without a target, one where not even that fits. On a busy machine more
    # steps are counted, before the prompts come, so that the rounds with the fewest are compared.
    fewest = [
        min(int(line.partition("max")[2].partition(" steps")[0].split()[-1]) for line in lines_of)
        for lines_of in (throughput, limited)
    ]
    assert fewest[1] >= fewest[0] + 3


def test_a_line_tells_quantiles_and_rates(capsys: pytest.CaptureFixture[str]) -> None:
    print_burst(50.0, Burst([*[10.0] * 98, 30.0, 40.0], [100.0, 300.0], 7, 1234.5, 0.05))
    line = capsys.readouterr().out
    assert "target    50 ms: gap p50   10.0  p99   30.1  max   40.0 ms; first token mean      200" in line
    assert "7 steps, 1,234 tokens/s, predictions off by 5%" in line
