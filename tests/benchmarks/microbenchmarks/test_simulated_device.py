"""The clock of the simulated device, and an engine that runs on it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from benchmarks.microbenchmarks.simulated_device import VOCAB_SIZE, DeviceClock, SimulatedEngine
from engine.client import EngineClient, TokenStream
from engine.interface.config import EngineConfig
from engine.interface.types import FinishReason
from sampling.host.params import SamplingParams


def test_steps_follow_each_other() -> None:
    clock = DeviceClock(step_seconds=2.0)
    assert clock.enqueue(10.0) == 12.0  # time before the first step does not count as idle
    assert clock.enqueue(11.0) == 14.0  # begins when the step before it ends
    assert clock.idle_seconds == 0.0
    assert clock.enqueue(17.0) == 19.0
    assert clock.idle_seconds == 3.0
    assert clock.num_steps == 3


def config(**options: Any) -> EngineConfig:
    return EngineConfig(max_num_seqs=4, max_num_batched_tokens=4 + 64, max_model_len=256, num_pages=40, **options)


async def run(engine: SimulatedEngine, prompts: list[list[int]], params: SamplingParams) -> list[list[int]]:
    async def read(stream: TokenStream) -> list[int]:
        token_ids = []
        async for event in stream:
            token_ids += event.token_ids
            assert event.finish_reason in (None, FinishReason.LENGTH)
        return token_ids

    client = EngineClient(engine)
    client.start(asyncio.get_running_loop())
    try:
        return await asyncio.gather(*[read(client.submit(prompt, params)) for prompt in prompts])
    finally:
        client.shutdown()


async def test_a_request_gets_the_same_tokens_whatever_else_runs() -> None:
    params = SamplingParams(max_tokens=20, seed=7, ignore_eos=True)
    [alone] = await run(SimulatedEngine(config(overlap=False), 0.0), [[1, 2, 3]], params)
    first, *_ = await run(SimulatedEngine(config(), 0.0), [[1, 2, 3], [4] * 70, [5], [6] * 9, [7] * 9], params)
    assert first == alone
    assert len(alone) == 20
    assert all(0 <= token < VOCAB_SIZE for token in alone)
    assert len(set(alone)) > 10


async def test_a_step_takes_its_time_and_the_overlapped_loop_keeps_the_device_busy() -> None:
    engine = SimulatedEngine(config(), step_seconds=0.1)
    start = time.perf_counter()
    await run(engine, [[1, 2, 3]], SamplingParams(max_tokens=10, ignore_eos=True))
    assert time.perf_counter() - start >= 10 * 0.1
    assert engine.clock.num_steps == 10
    assert engine.clock.idle_seconds < 10 * 0.1
    assert engine.stats().compiles_after_ready == 0


async def test_the_device_waits_in_the_synchronous_loop() -> None:
    engine = SimulatedEngine(config(overlap=False), step_seconds=0.0)
    await run(engine, [[1, 2, 3]], SamplingParams(max_tokens=10, ignore_eos=True))
    assert engine.clock.idle_seconds > 0.0


def test_configurations_that_cannot_be_simulated_are_refused() -> None:
    with pytest.raises(ValueError, match="num_pages is None"):
        SimulatedEngine(EngineConfig())
    with pytest.raises(ValueError, match="decode_chunk is 4"):
        SimulatedEngine(config(decode_chunk=4))
