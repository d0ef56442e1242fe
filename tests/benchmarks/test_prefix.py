"""A warm prompt finds its prefix in the cache, and a cold prompt finds nothing."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.bare.simulated_device import SimulatedEngine
from benchmarks.prefix import FirstToken, Pair, main, measure, print_pairs
from engine.client import EngineClient
from engine.interface.config import EngineConfig


def make_client(**options: Any) -> EngineClient:
    config = EngineConfig(
        max_num_seqs=2, max_num_batched_tokens=2 + 64, max_model_len=512, page_size=16, num_pages=100, **options
    )
    return EngineClient(SimulatedEngine(config, step_seconds=0.002))


async def test_warm_prompts_are_cached_and_so_faster() -> None:
    pairs = await measure(make_client(), num_prompt_tokens=320, num_cached_tokens=256, num_rounds=3, seed=0)
    assert [(pair.cold.num_cached_tokens, pair.warm.num_cached_tokens) for pair in pairs] == [(0, 256)] * 3
    # The cold prompt takes five steps of 64 tokens, and the warm one takes one step.
    assert sorted(pair.ratio for pair in pairs)[1] < 0.8
    assert min(pair.cold.seconds for pair in pairs) >= 5 * 0.002


async def test_a_warm_prompt_without_cached_tokens_is_an_error() -> None:
    client = make_client(enable_prefix_caching=False)
    with pytest.raises(RuntimeError, match="0 cold and 0 warm tokens were cached"):
        await measure(client, num_prompt_tokens=64, num_cached_tokens=32, num_rounds=1, seed=0)


def test_the_ratio_is_the_median_over_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    warm_seconds = (0.1, 0.2, 0.9)
    print_pairs([Pair(FirstToken(1.0, 0), FirstToken(seconds, 960)) for seconds in warm_seconds])
    output = capsys.readouterr().out
    assert "warm / cold, median of 3 pairs: 20.0%" in output
    assert "960 tokens cached, time to first token 200.0 ms (100.0 to 900.0)" in output


def test_more_cached_than_prompt_tokens_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--prompt-tokens", "64", "--cached-tokens", "64"])
    assert "--cached-tokens must be more than 0 and less than --prompt-tokens" in capsys.readouterr().err
