"""Random workloads on each kind of memory: every token and log probability is that of the run alone.

Requests branch at every page of common prompts, come in batches, find prefixes, are preempted, aborted and asleep, and
find their pages again after a restart.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from engine.backends.native import library
from engine.client import EngineClient
from engine.engine import Engine
from engine.interface.config import TILE_SIZE
from tests.engine.workloads import MAX_MODEL_LEN, Alone, Chance, load, run, started, stop, write_folder
from tests.patience import PATIENCE_S
from tests.thoroughness import IS_FULL

# Gated delta-nets with attention, state spaces alone, whose pages take no memory, and both beside attention.
RECURRENT = ["qwen3_5_moe"]
if IS_FULL:
    RECURRENT += ["qwen3_5", "mamba2", "granite_hybrid", "falcon_h1", "nemotron_h", "jamba"]
# Windows, windows beside sinks, and latents.
OTHERS = ["gemma3", "gpt_oss", "deepseek_v3"] if IS_FULL else []
NUM_GROUPS = {"gemma3": 3, "gpt_oss": 2}  # of layers that have pages of their own
# So many engines, each of other sizes, have so many workloads each.
NUM_ENGINES, NUM_WORKLOADS = (10, 50) if IS_FULL else (1, 6)


@pytest.fixture(scope="module")
def native() -> str:
    """The native kernels, whose bits depend on no neighbours; XLA's products do."""
    try:
        return library.load()
    except library.NativeUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=[*RECURRENT, *OTHERS])
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def folder(native: str, name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("workloads") / name, name)


@pytest.fixture(scope="module")
def alone(folder: Path) -> Alone:
    return Alone(folder)


def sizes_by_chance(chance: Chance, name: str) -> dict[str, Any]:
    """Those of an engine whose requests wait, are preempted and evict what the cache remembers."""
    choice = chance.random.choice
    longest = MAX_MODEL_LEN // chance.page_size * NUM_GROUPS.get(name, 1)
    sizes = {
        "page_size": chance.page_size,
        "num_pages": int(longest * choice([1.2, 1.3, 2.0])),
        "max_num_seqs": choice([2, 4, 7]),
        "max_num_batched_tokens": choice([1, 2, 3, 5]) * TILE_SIZE,
        "target_gap": choice([0.0, 5.0, 50.0]),
        "overlap": choice([True, True, False]),
    }
    return sizes if name in RECURRENT else {**sizes, "decode_chunk": choice([1, 1, 3])}


async def restart(client: EngineClient, engine: Engine) -> EngineClient:
    """Ends the engine's threads and forgets what memory remembers; pages in a folder stay."""
    stop(client, engine)
    assert engine.pool.reset_prefix_cache()
    client = started(engine)
    transfers = engine.scheduler.requests.prefixes.transfers
    if transfers is not None:
        async with asyncio.timeout(PATIENCE_S):
            while transfers.connector is None:
                await asyncio.sleep(0.005)
    return client


@pytest.mark.parametrize("seed", range(NUM_ENGINES))
async def test_every_token_and_log_probability_is_that_of_the_run_alone(
    folder: Path, alone: Alone, name: str, seed: int
) -> None:
    chance = Chance(seed)
    kept = {} if name in RECURRENT else {"prefix_cache_dir": str(folder / "kept")}
    engine = load(folder, **sizes_by_chance(chance, name), **kept)
    client = started(engine)
    num_cached = num_jobs = 0
    for number in range(NUM_WORKLOADS):
        jobs = chance.jobs_at_every_page() if number % 12 == 5 else chance.jobs()
        running = asyncio.gather(*(run(client, job) for job in jobs))
        if number % 3 == 2:
            await asyncio.sleep(chance.random.choice([0.0, 0.01]))
            await client.lifecycle.sleep(forget_weights=number % 2 == 0)
            await client.lifecycle.wake()
        outputs = await running
        await alone.check(jobs, outputs)
        chance.remember(jobs, outputs)
        num_cached += sum(output.num_cached for output in outputs)
        num_jobs += len(jobs)
        if number % 8 == 7:
            client = await restart(client, engine)
    stop(client, engine)
    engine.close()
    assert num_cached > 20 * num_jobs
