"""Bursts of a real program: the same tokens as step by step, told one by one, whatever comes between."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from engine import loop
from engine.backends.native import library
from engine.client import EngineClient
from engine.engine import Engine
from engine.interface.config import TILE_SIZE, EngineConfig
from engine.interface.types import FinishReason
from engine.schedule.request import Request
from engine.schedule.step_plan import StepPlan
from engine.step.device_runner import MAX_BURST_STEPS, DeviceRunner
from sampling.host.params import SamplingParams
from server.startup.progress import silent
from tests.gguf_tensors import VOCAB_SIZE, write_random_model

MAX_TOKENS = 40


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    try:
        library.load()
    except library.NativeUnavailable as error:
        pytest.skip(str(error))
    path = write_random_model(tmp_path_factory.mktemp("model") / "model.gguf", lambda name: Kind.Q8_0)
    config = EngineConfig(max_num_seqs=2, max_num_batched_tokens=TILE_SIZE, num_pages=40, max_model_len=128)
    return Engine.load(path, config, silent)


@pytest.fixture(autouse=True)
def _no_other_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine of another test that has come to no end would keep these from bursts."""
    monkeypatch.setattr(loop, "BUSY_LOOPS", set())


def prompts(count: int) -> list[list[int]]:
    chance = random.Random(count)
    return [[chance.randrange(VOCAB_SIZE) for _ in range(chance.randrange(2, 30))] for _ in range(count)]


def params(index: int) -> SamplingParams:
    """Greedy, random, with a filter, and with a feature, in turn."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.9, "top_p": 0.9},
        {"temperature": 0.8, "presence_penalty": 0.5},
    ]  # fmt: skip
    return SamplingParams(max_tokens=MAX_TOKENS, seed=index, ignore_eos=True, **kinds[index % len(kinds)])


async def decode(engine: Engine, kinds: Sequence[int], *, overlap: bool, abort_after: int | None = None) -> list[Any]:
    """The tokens of requests of these kinds; the second of several comes when the first has some tokens."""
    config, engine.config = engine.config, dataclasses.replace(engine.config, overlap=overlap)
    client = EngineClient(engine)
    engine.config = config
    client.start(asyncio.get_running_loop())
    has_begun = asyncio.Event()

    async def read(prompt: list[int], kind: int, *, waits: bool) -> list[int]:
        if waits:
            await has_begun.wait()
        tokens: list[int] = []
        stream = client.submit(prompt, params(kind))
        async for event in stream:
            tokens += event.token_ids
            if len(tokens) > 5:
                has_begun.set()
            if abort_after is not None and len(tokens) >= abort_after:
                stream.abort()
            assert event.finish_reason in (None, FinishReason.LENGTH, FinishReason.ABORT)
        return tokens

    jobs = zip(prompts(len(kinds)), kinds, strict=True)
    outputs = await asyncio.gather(*(read(*job, waits=index > 0) for index, job in enumerate(jobs)))
    num_late = client.stats().compiles_after_ready
    client.shutdown()  # behind it nothing is in flight, of aborted requests either
    engine.pool.check()
    assert num_late == engine.pool.num_active == 0
    assert engine.pool.reset_prefix_cache()
    return outputs


@pytest.mark.parametrize("kinds", [(0,), (1,), (0, 0), (0, 1), (2, 1), (1, 3), (3, 0, 2)], ids=str)
async def test_tokens_are_those_of_single_steps(
    engine: Engine, kinds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    dispatch_burst = DeviceRunner.dispatch_burst
    monkeypatch.setattr(
        DeviceRunner,
        "dispatch_burst",
        lambda runner, plans: lengths.append(len(plans)) or dispatch_burst(runner, plans),
    )
    expected = await decode(engine, kinds, overlap=False)
    assert not lengths  # the oracle waits for each step
    assert await decode(engine, kinds, overlap=True) == expected
    assert max(lengths) == MAX_BURST_STEPS


async def test_an_abort_in_a_burst_leaves_the_other_request_its_tokens(engine: Engine) -> None:
    expected = await decode(engine, (0, 1), overlap=False)
    outputs = await decode(engine, (0, 1), overlap=True, abort_after=9)
    assert all(output == whole[: len(output)] for output, whole in zip(outputs, expected, strict=True))
    assert min(map(len, outputs)) >= 9


def decode_plans(engine: Engine, request: Request, count: int) -> list[StepPlan]:
    """Plans of decode steps behind the prompt's, which is computed."""
    engine.scheduler.add(request)
    prompt = engine.scheduler.schedule()
    assert prompt is not None
    engine.scheduler.commit(prompt, engine.runner.result(engine.runner.dispatch(prompt)))
    first = engine.scheduler.schedule()
    assert first is not None
    return [first, *engine.scheduler.plan_ahead(first, count - 1)]


def end(engine: Engine, request: Request) -> None:
    engine.scheduler.abort(request.request_id)
    engine.scheduler.check_idle()
    assert engine.pool.reset_prefix_cache()


def test_a_burst_that_is_cut_goes_on_with_the_next_one(engine: Engine) -> None:
    runner, scheduler, prompt = engine.runner, engine.scheduler, prompts(1)[0]
    request = Request("a", list(prompt), params(1), 7, len(prompt) + MAX_TOKENS)
    plans = decode_plans(engine, request, 8)
    tokens: list[int] = []
    while len(plans) > 0:
        steps = runner.dispatch_burst(plans) if len(plans) > 1 else [runner.dispatch(plans[0])]
        for _ in range(runner.cut(steps[-1])):
            scheduler.withdraw(steps.pop().plan)
        for step in steps:
            result = runner.result(step)
            tokens += result.tokens
            scheduler.commit(step.plan, result)
        following = scheduler.schedule()
        plans = [] if following is None else [following, *scheduler.plan_ahead(following, 7)]
    assert len(tokens) == MAX_TOKENS - 1
    other = Request("b", list(prompt), params(1), 7, len(prompt) + MAX_TOKENS)
    expected: list[int] = []
    plan: StepPlan | None = decode_plans(engine, other, 1)[0]
    while plan is not None:
        result = runner.result(runner.dispatch(plan))
        expected += result.tokens
        scheduler.commit(plan, result)
        plan = scheduler.schedule()
    assert tokens == expected
    scheduler.check_idle()
    assert engine.pool.reset_prefix_cache()


def test_a_program_that_fails_in_a_burst_ends_the_wait_for_its_steps(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, prompt = engine.runner, prompts(1)[0]
    request = Request("a", list(prompt), params(0), 7, len(prompt) + MAX_TOKENS)
    steps = runner.dispatch_burst(decode_plans(engine, request, 4))
    results = [runner.result(step) for step in steps]
    broken = dataclasses.replace(steps[-1], index=4)  # the program has ended before it
    with pytest.raises(RuntimeError, match="ended after 4, before number 5"):
        runner.result(broken)
    for step, result in zip(steps, results, strict=True):
        engine.scheduler.commit(step.plan, result)
    end(engine, request)


def test_the_results_of_steps_come_one_by_one(engine: Engine) -> None:
    runner, prompt = engine.runner, prompts(1)[0]
    request = Request("a", list(prompt), params(0), 7, len(prompt) + MAX_TOKENS)
    steps = runner.dispatch_burst(decode_plans(engine, request, MAX_BURST_STEPS))
    for index, step in enumerate(steps):
        result = runner.result(step)
        assert runner.is_done(step)
        assert len(result.tokens) == 1
        engine.scheduler.commit(step.plan, result)
        assert request.num_output_tokens == index + 2
    assert np.asarray(jax.block_until_ready(steps[-1].out)) == MAX_BURST_STEPS
    end(engine, request)
