from __future__ import annotations

import pytest

from benchmarks.microbenchmarks.decoding import run_steps, run_streams
from benchmarks.microbenchmarks.simulated_device import SimulatedEngine
from engine.interface.config import EngineConfig

PROMPTS = [[1, 2, 3], list(range(40)), [7] * 21]
NUM_OUTPUT_TOKENS = 20


def make_engine(num_pages: int = 64) -> SimulatedEngine:
    config = EngineConfig(
        max_num_seqs=4, max_num_batched_tokens=128, page_size=16, num_pages=num_pages, max_model_len=128
    )
    return SimulatedEngine(config, step_seconds=0.001)


@pytest.fixture(scope="module")
def engine() -> SimulatedEngine:
    return make_engine()


def test_computes_what_the_loops_compute(engine: SimulatedEngine) -> None:
    """The bare loop leaves the engine as it was, so that the next measurement may use it."""
    bare = run_steps(engine, PROMPTS, NUM_OUTPUT_TOKENS)
    assert not engine.scheduler.has_work
    engine.pool.check()
    for overlap in (False, True):
        assert run_streams(engine, PROMPTS, NUM_OUTPUT_TOKENS, overlap=overlap).token_ids == bare.token_ids
    assert {len(output) for output in bare.token_ids} == {NUM_OUTPUT_TOKENS}
    assert run_steps(engine, PROMPTS, NUM_OUTPUT_TOKENS).token_ids == bare.token_ids


def test_no_loop_is_faster_than_the_device(engine: SimulatedEngine) -> None:
    limit = len(PROMPTS) / engine.clock.step_seconds
    assert 0 < run_steps(engine, PROMPTS, NUM_OUTPUT_TOKENS).tokens_per_s <= limit
    # The measured time begins when the tokens of a step arrive, shortly after the end of the step.
    assert 0 < run_streams(engine, PROMPTS, NUM_OUTPUT_TOKENS, overlap=True).tokens_per_s <= 1.3 * limit


def test_a_too_small_engine_is_reported() -> None:
    with pytest.raises(ValueError, match="cannot decode 3 requests"):
        run_steps(make_engine(num_pages=6), PROMPTS, NUM_OUTPUT_TOKENS)
