"""The default model: its float32 tokens equal the reference, and scheduling never changes tokens in any format."""

import asyncio
import dataclasses
import json
import random
from pathlib import Path

import numpy as np
import pytest

from engine.client import EngineClient
from engine.engine import Engine
from engine.interface.config import TILE_SIZE
from engine.interface.types import FinishReason
from engine.loop import Call
from engine.schedule.admission import preempt
from sampling.host.params import SamplingParams
from server.startup.progress import silent
from tests.feature_sets import FEATURE_SETS
from tests.forward_steps import ForwardSteps
from tests.thoroughness import IS_FULL, some

GOLDENS = json.loads((Path(__file__).parents[1] / "golden" / "smollm2_greedy.json").read_text())["prompts"]
LONG = next(golden for golden in GOLDENS if golden["name"] == "long")
TIE = 1e-4  # if the two best logits of the reference are closer than this, rounding decides


async def run(engine, requests, *, overlap=True, together=True):
    """Runs requests on a fresh client; checks that the engine is left as it was found.

    Args:
        requests: (prompt, params, delay in seconds, abort after tokens or None).
    """
    config = engine.config
    engine.config = dataclasses.replace(config, overlap=overlap)
    client = EngineClient(engine)
    engine.config = config
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
    engine.pool.check()
    assert stats.compiles_after_ready == 0
    assert stats.num_free_pages + stats.num_cached_pages + stats.num_active_pages == stats.num_pages
    assert engine.pool.num_active == 0
    return outputs


async def num_equal_to_the_reference(engine, goldens, num_tokens):
    """Compares the tokens of each prompt before the first tie of the reference; returns how many they are."""
    params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
    outputs = await run(engine, [(golden["prompt_token_ids"], params, 0, None) for golden in goldens])
    num_compared = 0
    for golden, (token_ids, _) in zip(goldens, outputs, strict=True):
        ties = [i for i, gap in enumerate(golden["logit_gaps"][:num_tokens]) if gap < TIE]
        end = ties[0] if ties else num_tokens
        expected = golden["output_token_ids"][:end]
        assert token_ids[:end] == expected, f"{golden['name']!r}, compared up to {end} of {num_tokens} tokens"
        num_compared += end
    return num_compared


async def test_float32_gives_the_tokens_of_the_reference(exact_engine, record_property):
    """Uses native kernels if there are some."""
    goldens = some(GOLDENS, 3)
    num_compared = await num_equal_to_the_reference(exact_engine, goldens, 64)
    record_property("tokens compared", num_compared)
    assert len(GOLDENS) >= 20
    assert num_compared >= 0.8 * 64 * len(goldens)  # the rest is behind a tie of the reference


@pytest.mark.skipif(not IS_FULL, reason="it compiles the whole model by XLA; EAGRE_FULL=1 runs it")
async def test_float32_through_xla_gives_the_tokens_of_the_reference(model_path, real_engine_config, exact_engine):
    if exact_engine.model_info.matmul_backend == exact_engine.model_info.attention_backend == "xla":
        pytest.skip(f"the engine of the test before was of XLA already: {exact_engine.model_info.backend_detail}")
    config = dataclasses.replace(
        real_engine_config, dtype="float32", matmul_backend="xla", attention_backend="xla", num_pages=300,
        max_num_seqs=2, max_num_batched_tokens=TILE_SIZE, page_size=1,
    )  # fmt: skip
    engine = Engine.load(model_path, config, silent)
    goldens = [golden for golden in GOLDENS if golden["name"] in ("story", "chat turns")]
    # Each twice: the second shares the pages of the first in the step that computes them.
    twice = [golden for golden in goldens for _ in range(2)]
    assert await num_equal_to_the_reference(engine, twice, 24) == 24 * len(twice)
    assert engine.stats().prefix_cache_hits > 0


def random_requests(seed, count):
    chance = random.Random(seed)
    requests = []
    for index in range(count):
        prompt = list(chance.choice(GOLDENS)["prompt_token_ids"][: chance.choice([3, 40, 100, 200])])
        params = SamplingParams(
            max_tokens=chance.randint(8, 16),
            ignore_eos=True,
            **chance.choice(
                [
                    {"temperature": 0.0},
                    {"temperature": 0.8, "seed": index},
                    {"temperature": 1.2, "top_p": 0.9, "seed": index},
                    {"temperature": 1.0, "top_k": 20, "min_p": 0.02, "seed": index},
                    *({**features, "seed": index} for features in FEATURE_SETS),
                ]
            ),
        )
        abort_after = chance.choice([None, None, None, 2])
        requests.append((prompt, params, chance.random() * 0.5, abort_after))
    return requests


async def test_a_row_may_read_pages_that_another_row_of_its_step_writes(real_engine):
    """Requests with a common prefix begin in the step that computes it."""
    page_size, prompt = real_engine.scheduler.requests.page_size, LONG["prompt_token_ids"]
    params = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
    requests = [([*prompt[:100], *prompt[150 + 7 * i : 170 + 7 * i]], params, 0, None) for i in range(3)]
    alone = []
    for request in requests:
        assert real_engine.pool.reset_prefix_cache()
        alone += await run(real_engine, [request])
    assert real_engine.pool.reset_prefix_cache()
    hits = real_engine.stats().prefix_cache_hits
    assert await run(real_engine, requests) == alone
    assert real_engine.stats().prefix_cache_hits - hits == 2 * (100 // page_size * page_size)


async def test_overlapped_equals_synchronous_equals_alone(real_engine):
    requests = random_requests(1, 20 if IS_FULL else 12)
    alone = await run(real_engine, [(*request[:3], None) for request in requests], together=False)
    for overlap in (True, False):
        for _ in range(2):  # the second time with a warm prefix cache
            together = await run(real_engine, requests, overlap=overlap)
            for (*_, abort_after), (token_ids, reason), (expected, _) in zip(requests, together, alone, strict=True):
                if reason is FinishReason.ABORT:
                    assert abort_after is not None
                    assert token_ids == expected[: len(token_ids)]
                else:
                    assert token_ids == expected
        assert real_engine.pool.reset_prefix_cache()


async def test_chunked_decoding_gives_the_same_tokens(model_path, real_engine_config, real_engine):
    """`decode_chunk` does several steps in one program."""
    config = dataclasses.replace(real_engine_config, decode_chunk=4, max_num_seqs=2, num_pages=100)
    client = EngineClient(Engine.load(model_path, config, silent))
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
    """A long prompt in chunks of one tile and of two, cold and warm, with and without preemption."""
    scheduler = real_engine.scheduler
    wishes = [
        SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True),
        SamplingParams(max_tokens=12, temperature=0.8, top_p=0.9, seed=11, ignore_eos=True),
        *(SamplingParams(max_tokens=12, seed=12, ignore_eos=True, **features) for features in FEATURE_SETS[1:5]),
        SamplingParams(max_tokens=12, seed=13, ignore_eos=True, **FEATURE_SETS[-1]),
    ]
    outputs = []
    for budget, is_preempting in ((72, False), (128, False), (72, True), (128, True)):
        monkeypatch.setattr(scheduler, "max_num_batched_tokens", budget)
        assert real_engine.pool.reset_prefix_cache()
        client = EngineClient(real_engine)
        client.start(asyncio.get_running_loop())

        def preempt_all():
            for request in tuple(scheduler.requests.running):
                preempt(scheduler.requests, request)

        async def read(wish, client=client, is_preempting=is_preempting, preempt_all=preempt_all):
            token_ids = []
            stream = client.submit(LONG["prompt_token_ids"], wish)
            async for event in stream:
                if is_preempting and not token_ids:
                    client._engine_loop.post(Call(preempt_all))
                token_ids += event.token_ids
            return token_ids

        num_preemptions = scheduler.counters.num_preemptions
        outputs.append(await asyncio.gather(*map(read, wishes)))
        assert (scheduler.counters.num_preemptions > num_preemptions) == is_preempting
        client.shutdown()
        real_engine.pool.check()
    assert all(output == outputs[0] for output in outputs)


@pytest.fixture(scope="module")
def same_bits(real_engine):
    """Skips a test without native kernels, because XLA adds in different orders for different shapes."""
    if real_engine.model_info.matmul_backend != "native":
        pytest.skip(f"only native kernels promise the same bits: {real_engine.model_info.backend_detail}")


@pytest.mark.skipif(not IS_FULL, reason="the logits of 64 rows are compared below; EAGRE_FULL=1 runs an engine of 64")
@pytest.mark.usefixtures("same_bits")
async def test_tokens_are_the_same_in_a_batch_of_any_size(model_path, real_engine_config):
    sizes = (3, 16, 64)
    config = dataclasses.replace(real_engine_config, max_num_seqs=sizes[-1], max_num_batched_tokens=192)
    engine = Engine.load(model_path, config, silent)

    def request(index):
        options = [
            {"temperature": 0.0}, {"temperature": 0.9, "top_p": 0.95, "seed": index},
            {"seed": index, **FEATURE_SETS[index % len(FEATURE_SETS)]},
        ][index % 3]  # fmt: skip
        prompt = GOLDENS[index % len(GOLDENS)]["prompt_token_ids"][: 8 + index]
        return prompt, SamplingParams(max_tokens=8, ignore_eos=True, **options), 0, None

    chosen = (0, 1, 2, 6, 14, 15)
    alone = await run(engine, [request(index) for index in chosen], together=False)
    for size in sizes:
        assert engine.pool.reset_prefix_cache()
        order = random.Random(size).sample(range(size), size)
        together = dict(zip(order, await run(engine, [request(index) for index in order]), strict=True))
        for index, expected in zip(chosen, alone, strict=True):
            if index < size:
                assert together[index] == expected, f"request {index} in a batch of {size}"


@pytest.fixture(scope="module")
def steps(model_path, real_engine_config, same_bits):
    """The model as the default engine computes it."""
    return ForwardSteps.load(model_path, real_engine_config)


def sequence(golden):
    return golden["prompt_token_ids"] + golden["output_token_ids"]


def test_logits_are_the_same_bits_in_every_chunk(steps):
    tokens = sequence(LONG)
    whole = steps.logits([tokens], num_decoded=3)
    assert np.isfinite(whole).all()
    for chunk in some((32, 64, 96, 256), 2):
        assert np.array_equal(steps.logits([tokens], num_decoded=3, chunk=chunk), whole), f"in chunks of {chunk}"
    short = sequence(GOLDENS[0])
    assert np.array_equal(
        steps.logits([short], num_decoded=3), steps.logits([short], num_decoded=len(short) - 1)[:, -4:]
    )


def test_logits_are_the_same_bits_in_every_batch(steps):
    check_every_batch(steps, (3, 16, 64))


@pytest.mark.usefixtures("same_bits")
def test_logits_of_a_model_with_norms_behind_its_blocks_are_the_same_bits_in_every_batch(
    gemma_path, real_engine_config
):
    check_every_batch(ForwardSteps.load(gemma_path, real_engine_config), some((3, 6, 16, 64), 2))


def check_every_batch(steps, sizes):
    tokens = sequence(GOLDENS[1])[:100]
    alone = steps.logits([tokens], num_decoded=3)
    for size in sizes:
        others = [sequence(GOLDENS[i % len(GOLDENS)])[i // 2 : i // 2 + 5 + i] for i in range(1, size)]
        batch = [*others[: size // 2], tokens, *others[size // 2 :]]
        together = steps.logits(batch, num_decoded=3, chunk=64)
        assert np.array_equal(together[size // 2], alone[0]), f"in a batch of {size}"
