"""The default model: equal to its reference, and the same tokens however it is scheduled."""

import asyncio
import dataclasses
import json
import random
from pathlib import Path

import pytest

from engine.client import EngineClient
from engine.engine import Engine
from engine.loop import Call
from engine.types import FinishReason
from sampling.params import SamplingParams

GOLDENS = json.loads((Path(__file__).parents[1] / "golden" / "smollm2_greedy.json").read_text())["prompts"]
TIE = 1e-4  # where the reference's two best logits are closer than this, rounding decides


@pytest.fixture
async def run(real_engine):
    """Runs requests on a fresh client; checks that the engine is left as it was found."""

    async def run(requests, *, overlap=True, together=True):
        """requests: (prompt, params, delay in events of the first stream, abort after tokens or None)."""
        config = real_engine.config
        real_engine.config = dataclasses.replace(config, overlap=overlap)
        client = EngineClient(real_engine)
        real_engine.config = config
        client.start(asyncio.get_running_loop())

        async def one(prompt, params, delay, abort_after):
            await asyncio.sleep(delay if together else 0)
            token_ids = []
            stream = client.submit(prompt, params)
            async for event in stream:
                token_ids += event.token_ids
                if abort_after is not None and len(token_ids) >= abort_after:
                    stream.abort()
                reason = event.finish_reason
            return token_ids, reason

        if together:
            outputs = await asyncio.gather(*(one(*request) for request in requests))
        else:
            outputs = [await one(*request) for request in requests]
        stats = client.stats()
        client.shutdown()
        real_engine.pool.check()
        assert stats.compiles_after_ready == 0
        assert stats.num_free_pages + stats.num_cached_pages + stats.num_active_pages == stats.num_pages
        assert real_engine.pool.num_active == 0
        return outputs

    return run


async def test_greedy_tokens_equal_the_reference(run, record_property):
    params = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True)
    outputs = await run([(golden["prompt_token_ids"], params, 0, None) for golden in GOLDENS])
    num_compared = 0
    for golden, (token_ids, _) in zip(GOLDENS, outputs, strict=True):
        expected = golden["output_token_ids"]
        ties = [i for i, gap in enumerate(golden["logit_gaps"]) if gap < TIE]
        end = ties[0] if ties else len(expected)
        assert token_ids[:end] == expected[:end], f"{golden['name']!r}, compared up to {end} of {len(expected)} tokens"
        num_compared += end
    record_property("tokens compared", num_compared)
    assert len(GOLDENS) >= 20
    assert num_compared >= 20 * 64


def random_requests(seed, count):
    chance = random.Random(seed)
    requests = []
    for index in range(count):
        prompt = list(chance.choice(GOLDENS)["prompt_token_ids"][: chance.choice([3, 40, 100, 200])])
        params = SamplingParams(
            max_tokens=chance.randint(1, 16),
            ignore_eos=True,
            **chance.choice(
                [
                    {"temperature": 0.0},
                    {"temperature": 0.8, "seed": index},
                    {"temperature": 1.2, "top_p": 0.9, "seed": index},
                    {"temperature": 1.0, "top_k": 20, "min_p": 0.02, "seed": index},
                ]
            ),
        )
        abort_after = chance.choice([None, None, None, 2])
        requests.append((prompt, params, chance.random() * 0.5, abort_after))
    return requests


async def test_overlapped_equals_synchronous_equals_alone(run, real_engine):
    requests = random_requests(1, 14)
    alone = await run([(*request[:3], None) for request in requests], together=False)
    for overlap in (True, False):
        for _ in range(2):  # the second time with a warm prefix cache
            together = await run(requests, overlap=overlap)
            for (*_, abort_after), (token_ids, reason), (expected, _) in zip(requests, together, alone, strict=True):
                if reason is FinishReason.ABORT:
                    assert abort_after is not None
                    assert token_ids == expected[: len(token_ids)]
                else:
                    assert token_ids == expected
        assert real_engine.pool.reset_prefix_cache()


async def test_chunked_decoding_gives_the_same_tokens(model_path, real_engine_config, real_engine):
    """Several steps in one program."""
    config = dataclasses.replace(real_engine_config, decode_chunk=4, max_num_seqs=2, num_pages=100)
    client = EngineClient(Engine.load(model_path, config, lambda stage, done, total: None))
    client.start(asyncio.get_running_loop())
    wishes = [
        SamplingParams(max_tokens=23, temperature=0.0, ignore_eos=True),
        SamplingParams(max_tokens=17, temperature=0.9, top_p=0.95, seed=3, ignore_eos=True),
    ]

    async def read(client, golden, wish):
        token_ids = []
        async for event in client.submit(golden["prompt_token_ids"], wish):
            token_ids += event.token_ids
        return token_ids

    jobs = [(golden, wish) for golden in GOLDENS[1:3] for wish in wishes]
    chunked = await asyncio.gather(*(read(client, *job) for job in jobs))
    num_steps = client.stats().num_steps
    client.shutdown()
    single = EngineClient(real_engine)
    single.start(asyncio.get_running_loop())
    assert chunked == await asyncio.gather(*(read(single, *job) for job in jobs))
    single.shutdown()
    assert num_steps < sum(wish.max_tokens for _, wish in jobs) / 2


async def test_forced_preemption_and_every_chunk_size_give_the_same_tokens(real_engine, monkeypatch):
    """A long prompt in chunks of one tile and of two, cold and warm, and thrown out in the middle of its answer."""
    long = next(golden for golden in GOLDENS if golden["name"] == "long")
    scheduler = real_engine.scheduler
    wishes = [
        SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True),
        SamplingParams(max_tokens=12, temperature=0.8, top_p=0.9, seed=11, ignore_eos=True),
    ]
    outputs = []
    for budget, preempt in ((72, False), (128, False), (72, True), (128, True)):
        monkeypatch.setattr(scheduler, "_max_num_batched_tokens", budget)
        assert real_engine.pool.reset_prefix_cache()
        client = EngineClient(real_engine)
        client.start(asyncio.get_running_loop())

        def preempt_all():
            for request in tuple(scheduler._running):
                scheduler._preempt(request)

        async def read(wish, client=client, preempt=preempt, preempt_all=preempt_all):
            token_ids = []
            stream = client.submit(long["prompt_token_ids"], wish)
            async for event in stream:
                if preempt and not token_ids:
                    client._engine_loop.post(Call(preempt_all))
                token_ids += event.token_ids
            return token_ids

        num_preemptions = scheduler.counters.num_preemptions
        outputs.append(await asyncio.gather(*map(read, wishes)))
        assert (scheduler.counters.num_preemptions > num_preemptions) == preempt
        client.shutdown()
        real_engine.pool.check()
    assert outputs[0][0] == long["output_token_ids"][:12]
    assert all(output == outputs[0] for output in outputs)
