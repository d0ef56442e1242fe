"""Whole engines: prefixes, preemption, sleep, programs that are kept, and crowds of requests of every kind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from engine.client import EngineClient
from engine.engine import Engine
from engine.interface.config import TILE_SIZE
from sampling.host.params import SamplingParams
from tests.engine.device.conftest import FolderOf
from tests.engine.models.test_architectures import CROWDED, GOLDENS, POOLED, check_embeddings, configuration, outputs
from tests.engine.workloads import Chance, Job, load, run, started, stop

IN_A_CROWD = ["gemma3", "qwen3_moe", "qwen3_next", "gpt_oss", "deepseek_v3", "mamba2", "jamba", "lfm2"]


def last_prompt(name: str) -> dict[str, Any]:
    prompt: dict[str, Any] = GOLDENS[name]["prompts"][-1]
    return prompt


def greedy(name: str) -> Job:
    """The last prompt of a golden."""
    prompt = last_prompt(name)
    params = SamplingParams(max_tokens=len(prompt["output_token_ids"]), temperature=0.0, ignore_eos=True, logprobs=0)
    return Job(tuple(prompt["prompt_token_ids"]), params)


@pytest.mark.parametrize("name", IN_A_CROWD)
async def test_tokens_in_chunks_cached_and_preempted(folder_of: FolderOf, name: str) -> None:
    prompts = [prompt for prompt in GOLDENS[name]["prompts"] if len(prompt["prompt_token_ids"]) in CROWDED]
    config = configuration(
        "xla", name, max_num_seqs=2, max_num_batched_tokens=2 + TILE_SIZE, num_pages=46, page_size=4, max_model_len=128
    )
    engine = Engine.load(folder_of(name), config, lambda *step: None)
    client = EngineClient(engine)
    client.start(asyncio.get_running_loop())
    for _ in range(2):
        got = [token_ids for token_ids, _ in await outputs(client, prompts)]
        assert got == [prompt["output_token_ids"] for prompt in prompts]
    if name in POOLED:
        await check_embeddings(client, name)
    assert client.stats().num_preemptions > 0
    stop(client, engine)


@pytest.mark.parametrize(
    ("name", "changes"),
    [("llama", {}), ("llama", {"decode_chunk": 3}), ("llama", {"overlap": False}), ("qwen3_5_moe", {})],
    ids=str,
)
async def test_sleep_and_wake(folder_of: FolderOf, name: str, changes: dict[str, Any]) -> None:
    """In the middle of a request, with weights moved to the host's memory and with weights read again."""
    engine = load(folder_of(name), page_size=8, num_pages=200, **changes)
    client = started(engine)
    for forgets in (False, True):
        running = asyncio.ensure_future(run(client, greedy(name)))
        await asyncio.sleep(0)
        await client.lifecycle.sleep(forget_weights=forgets)
        await client.lifecycle.wake()
        assert (await running).token_ids == last_prompt(name)["output_token_ids"]
    stop(client, engine)


@pytest.mark.parametrize("name", ["qwen3_5_moe", "gemma3", "mamba2", "gpt_oss", "deepseek_v3"])
async def test_requests_of_every_kind_end_as_they_should(folder_of: FolderOf, name: str) -> None:
    """Their bits are not compared with those alone: on such a device they depend on neighbours."""
    chance = Chance(3)
    engine = load(folder_of(name), page_size=chance.page_size, num_pages=1600 // chance.page_size)
    client = started(engine)
    num_cached = 0
    for number in range(8):
        jobs = chance.jobs_at_every_page() if number == 5 else chance.jobs()
        done = await asyncio.gather(*(run(client, job) for job in jobs))
        for job, output in zip(jobs, done, strict=True):
            assert np.isfinite(output.logprobs).all()
            assert job.num_read is not None or len(output.token_ids) == job.params.max_tokens
            num_cached += output.num_cached
        chance.remember(jobs, done)
    stop(client, engine)
    assert num_cached > 0


async def test_a_second_start_compiles_little(folder_of: FolderOf, tmp_path: Path) -> None:
    compiled = list[str]()
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **more: compiled.append(event) if event.endswith("backend_compile_duration") else None
    )
    counts = []
    for _ in range(2):
        jax.clear_caches()
        compiled.clear()
        engine = load(folder_of("llama"), page_size=8, num_pages=200, compilation_cache=str(tmp_path))
        client = started(engine)
        assert (await run(client, greedy("llama"))).token_ids == last_prompt("llama")["output_token_ids"]
        counts.append(len(compiled))
        stop(client, engine)
        engine.close()
    assert counts[1] < counts[0] / 2
