"""A model with recurrent layers whose requests are preempted, or find prefixes up to a snapshot of their states."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cache.states import LONGEST_INTERVAL
from engine.backends.native import library
from engine.client import EngineClient
from engine.engine import Engine
from engine.interface.config import TILE_SIZE, EngineConfig
from sampling.host.params import SamplingParams
from tests.engine.workloads import Alone, Job, load, run, started, stop, write_folder
from tests.thoroughness import IS_FULL

# Gated delta-nets with attention, and state spaces alone, whose pages take no memory.
NAMES = ["qwen3_5_moe", "mamba2"]
if IS_FULL:
    NAMES += ["granite_hybrid", "falcon_h1", "nemotron_h", "jamba"]
PAGE_SIZE = 8
NUM_PAGES = 64  # fewer than a batch needs


@pytest.fixture(scope="module", params=NAMES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("hybrid") / request.param, request.param)


@pytest.fixture(scope="module")
def alone(native: str, folder: Path) -> Alone:
    return Alone(folder)


@pytest.fixture(scope="module")
def engine(native: str, folder: Path) -> Engine:
    return load(folder, page_size=PAGE_SIZE, num_pages=NUM_PAGES)


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
    stop(client, engine)


async def test_preempted_requests_go_on_as_alone(client: EngineClient, alone: Alone) -> None:
    """Each of two needs 33 of 63 pages at its end."""
    before = client.stats().num_preemptions
    params = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True, logprobs=0)
    jobs = [Job(tuple(3 + (i * step) % 240 for i in range(200)), params) for step in (7, 11)]
    outputs = await asyncio.gather(*(run(client, job) for job in jobs))
    await alone.check(jobs, outputs)
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
