"""A model with recurrent layers under random workloads: every token and log probability is that of the run alone.

Requests branch at every page of common prompts, come in batches, find prefixes, are preempted, aborted and asleep.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from cache.states import LONGEST_INTERVAL
from engine.backends.native import library
from engine.client import EngineClient
from engine.engine import Engine
from engine.interface.config import TILE_SIZE, EngineConfig
from sampling.host.params import SamplingParams
from tests.golden.architectures.tiny_weights import tiny_weights
from tests.thoroughness import IS_FULL

GOLDENS = Path(__file__).parents[1] / "golden" / "architectures"
# Gated delta-nets with attention, and state spaces alone, whose pages take no memory.
NAMES = ["qwen3_5_moe", "mamba2"]
if IS_FULL:
    NAMES += ["granite_hybrid", "falcon_h1", "nemotron_h", "jamba"]
PAGE_SIZE = 8
NUM_PAGES = 64  # fewer than a batch needs
LENGTHS = (90, 150, 260)  # of the prompts from which others branch
NUM_ROUNDS = 60 if IS_FULL else 6
MAX_BATCH = 8


@pytest.fixture(scope="module", params=NAMES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    golden = json.loads((GOLDENS / f"{request.param}.json").read_text(encoding="utf-8"))
    path = tmp_path_factory.mktemp("hybrid")
    (path / "config.json").write_text(json.dumps(golden["config"]), encoding="utf-8")
    weights = tiny_weights(golden["config"]["architectures"][0], golden["shapes"], golden["seed"])
    save_file(weights, path / "model.safetensors")
    return path


def load(folder: Path, **changes: Any) -> Engine:
    values = {
        "dtype": "float32", "max_num_seqs": 4, "max_num_batched_tokens": 3 * TILE_SIZE, "max_model_len": 400,
        "page_size": PAGE_SIZE, "num_pages": NUM_PAGES, **changes,
    }  # fmt: skip
    return Engine.load(folder, EngineConfig(**values), lambda stage, done, total: None)


@pytest.fixture(scope="module")
def alone(native: str, folder: Path) -> Engine:
    """An engine that remembers nothing, for one request at a time."""
    return load(folder, max_num_seqs=1, max_num_batched_tokens=2 * TILE_SIZE, enable_prefix_caching=False)


@pytest.fixture(scope="module")
def engine(native: str, folder: Path) -> Engine:
    return load(folder)


@pytest.fixture(scope="module")
def native() -> str:
    """The native kernels, whose bits depend on no neighbours; XLA's products do."""
    try:
        return library.load()
    except library.NativeUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[EngineClient]:
    client = started(engine)
    yield client
    stats = client.stats()
    client.shutdown()
    engine.pool.check()
    assert engine.pool.snapshots is not None
    engine.pool.snapshots.check()
    assert (engine.pool.num_active, engine.pool.snapshots.num_active) == (0, 0)
    assert stats.compiles_after_ready == 0


def started(engine: Engine) -> EngineClient:
    client = EngineClient(engine)
    client.start(asyncio.get_running_loop())
    return client


@dataclass(frozen=True)
class Job:
    prompt: tuple[int, ...]
    params: SamplingParams
    num_read: int | None = None  # tokens after which its reader leaves; None: it stays


@dataclass
class Output:
    token_ids: list[int]
    logprobs: list[float]
    num_cached: int


async def run(client: EngineClient, job: Job) -> Output:
    output = Output([], [], 0)
    stream = client.submit(list(job.prompt), job.params)
    async for event in stream:
        output.token_ids += event.token_ids
        output.logprobs += [entry.logprob for entry in event.logprobs or ()]
        output.num_cached = event.num_cached_tokens
        if job.num_read is not None and len(output.token_ids) >= job.num_read:
            client.abort(stream.request_id)
            break
    return output


def jobs_of(chance: random.Random, outputs: list[tuple[int, ...]]) -> list[Job]:
    """A batch: new prompts, prompts that branch from others at any page or token, and continued conversations."""
    jobs = []
    for _ in range(chance.randint(1, MAX_BATCH)):
        stem = chance.choice(outputs) if outputs else ()
        cut = chance.choice([len(stem), chance.randrange(len(stem) + 1) // PAGE_SIZE * PAGE_SIZE, len(stem) // 2])
        length = chance.choice(LENGTHS) if not cut or chance.random() < 0.2 else chance.randint(1, 40)
        prompt = (*stem[:cut][: 300 - length], *(chance.randrange(3, 250) for _ in range(length)))
        params = SamplingParams(
            max_tokens=chance.choice([1, 5, 30, 60]), temperature=chance.choice([0.0, 1.0]), seed=chance.randrange(99),
            ignore_eos=True, logprobs=0,
        )  # fmt: skip
        jobs += [Job(prompt, params, chance.choice([None, None, None, 3]))] * chance.choice([1, 1, 2])
    return jobs


async def test_every_token_and_log_probability_is_that_of_the_run_alone(client: EngineClient, alone: Engine) -> None:
    chance = random.Random(0)
    stems: list[tuple[int, ...]] = []
    num_cached = num_jobs = 0
    witness = started(alone)
    for number in range(NUM_ROUNDS):
        jobs = jobs_of(chance, stems)
        running = asyncio.gather(*(run(client, job) for job in jobs))
        if number % 3 == 2:
            await asyncio.sleep(0)
            await client.lifecycle.sleep()
            await client.lifecycle.wake()
        outputs = await running
        for job, output in zip(jobs, outputs, strict=True):
            expected = await run(witness, job)
            length = len(output.token_ids)
            if job.num_read is not None:  # how many more come before the reader leaves is a matter of chance
                length = min(length, len(expected.token_ids))
            assert output.token_ids[:length] == expected.token_ids[:length]
            assert output.logprobs[:length] == expected.logprobs[:length]
            num_cached += output.num_cached
            stems.append((*job.prompt, *output.token_ids))
        num_jobs += len(jobs)
        stems = stems[-12:]
    witness.shutdown()
    assert num_cached > 20 * num_jobs


async def test_preempted_requests_go_on_as_alone(client: EngineClient, alone: Engine) -> None:
    """Each of two needs 33 of 63 pages at its end."""
    before = client.stats().num_preemptions
    params = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True, logprobs=0)
    jobs = [Job(tuple(3 + (i * step) % 240 for i in range(200)), params) for step in (7, 11)]
    outputs = await asyncio.gather(*(run(client, job) for job in jobs))
    witness = started(alone)
    for job, output in zip(jobs, outputs, strict=True):
        expected = await run(witness, job)
        assert (output.token_ids, output.logprobs) == (expected.token_ids, expected.logprobs)
    witness.shutdown()
    assert client.stats().num_preemptions > before


async def test_a_repeated_prompt_computes_less_than_a_page_and_a_continued_one_little_more(
    client: EngineClient,
) -> None:
    prompt = tuple(range(3, 203))
    params = SamplingParams(max_tokens=41, temperature=0.0, ignore_eos=True, logprobs=0)
    first = await run(client, Job(prompt, params))
    again = await run(client, Job(prompt, params))
    assert (again.token_ids, again.logprobs) == (first.token_ids, first.logprobs)
    assert again.num_cached == (len(prompt) - 1) // PAGE_SIZE * PAGE_SIZE
    longer = (*prompt, *first.token_ids, 5, 6, 7)
    continued = await run(client, Job(longer, params))
    # The last token of the answer is no input of a step yet.
    assert continued.num_cached == (len(prompt) + len(first.token_ids) - 1) // PAGE_SIZE * PAGE_SIZE


async def test_a_prefix_that_ends_elsewhere_is_found_up_to_the_snapshot_before(
    client: EngineClient, folder: Path
) -> None:
    # Where pages take memory, there are as many snapshots as take as much; else they are as rare as they may be.
    has_pages = EngineClient.footprint(folder, EngineConfig(dtype="float32")).kv_bytes_per_token > 0
    most_lost = 2 * TILE_SIZE if has_pages else LONGEST_INTERVAL + TILE_SIZE
    prompt = tuple(7 + i % 200 for i in range(320))
    params = SamplingParams(max_tokens=1, temperature=0.0)
    await run(client, Job(prompt, params))
    for cut in range(PAGE_SIZE, len(prompt), 5 * PAGE_SIZE):
        branch = await run(client, Job((*prompt[:cut], 1, 2, 3), params))
        assert cut - most_lost < branch.num_cached <= cut
