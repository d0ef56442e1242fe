"""A warm prompt finds its prefix in the cache, and a cold prompt finds nothing."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from benchmarks.microbenchmarks.simulated_device import SimulatedEngine
from benchmarks.prefix import main, measure
from engine.client import EngineClient
from engine.interface.config import EngineConfig


def make_client(**options: Any) -> EngineClient:
    config = EngineConfig(
        max_num_seqs=2, max_num_batched_tokens=2 + 64, max_model_len=512, page_size=16, num_pages=100, **options
    )
    return EngineClient(SimulatedEngine(config, step_seconds=0.002))


def options_of(**changes: Any) -> argparse.Namespace:
    options = {"prompt_tokens": 320, "cached_tokens": 256, "rounds": 3, "seed": 0, "restart": False}
    return argparse.Namespace(**options | changes)


def test_warm_prompts_are_cached_and_so_faster() -> None:
    turns = measure(make_client(), options_of())
    figures = {
        name: [turn.figures for turn in sorted(turns, key=lambda turn: turn.round) if turn.contender == name]
        for name in ("cold", "warm")
    }
    assert [each["cached tokens"] for each in figures["cold"]] == [0] * 3
    assert [each["cached tokens"] for each in figures["warm"]] == [256] * 3
    # The cold prompt takes five steps of 64 tokens, and the warm one takes one step.
    seconds = {name: [each["first token, ms"] / 1000 for each in found] for name, found in figures.items()}
    assert min(seconds["cold"]) >= 5 * 0.002
    assert min(seconds["warm"]) < 0.8 * min(seconds["cold"])  # a busy machine only adds to each


def test_a_warm_prompt_without_cached_tokens_is_an_error() -> None:
    client = make_client(enable_prefix_caching=False)
    with pytest.raises(RuntimeError, match="0 tokens of a warm prompt were cached"):
        measure(client, options_of(prompt_tokens=64, cached_tokens=32, rounds=1))


def test_more_cached_than_prompt_tokens_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--prompt-tokens", "64", "--cached-tokens", "64"])
    assert "--cached-tokens must be less than --prompt-tokens" in capsys.readouterr().err
