"""Pages of a model with windows, which another server has computed: what a token sees is read, and nothing else."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from engine.client import EngineClient
from engine.engine import Engine
from engine.interface.config import TILE_SIZE
from sampling.host.params import SamplingParams
from tests.engine.workloads import Job, load, run, started, stop, write_folder
from tests.patience import PATIENCE_S
from tests.thoroughness import IS_FULL

KEY = "a-secret-of-page-servers"
PAGE_SIZE, NUM_PAGES = 8, 400
PROMPT = tuple(3 + index * 7 % 240 for index in range(301))
WINDOW = 24  # of its golden
ENDS = (301, 300, 299, 299, 163, 96, 41)  # of prompts that the second server is asked for


async def opened(engine: Engine) -> EngineClient:
    client = started(engine)
    transfers = engine.scheduler.requests.prefixes.transfers
    assert transfers is not None
    async with asyncio.timeout(PATIENCE_S):
        while transfers.connector is None:
            await asyncio.sleep(0.005)
    return client


@pytest.mark.skipif(not IS_FULL, reason="EAGRE_FULL=1 compiles two engines")
async def test_prefixes_of_another_server_are_found_wherever_they_end(native: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "gemma3", "gemma3")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    common = {"page_size": PAGE_SIZE, "num_pages": NUM_PAGES, "prefix_cache_key": KEY}
    first = load(folder, prefix_cache_dir=str(tmp_path / "first"), prefix_cache_listen=address, **common)
    second = load(
        folder, prefix_cache_dir=str(tmp_path / "second"), prefix_cache_peers=(address,),
        max_num_batched_tokens=TILE_SIZE, **common,
    )  # fmt: skip
    computing, reading = await opened(first), await opened(second)
    transfers = second.scheduler.requests.prefixes.transfers
    assert transfers is not None
    params = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True, logprobs=0)
    expected = await run(computing, Job(PROMPT, params))
    async with asyncio.timeout(PATIENCE_S):
        while num_names(second) < 3 * ((len(PROMPT) + 19) // PAGE_SIZE):  # of three groups
            await asyncio.sleep(0.05)
    for end in ENDS:
        prompt = PROMPT[:end]
        output = await run(reading, Job(prompt, params))
        alone = expected if end == len(PROMPT) else await run(computing, Job(prompt, params))
        assert (output.token_ids, output.logprobs) == (alone.token_ids, alone.logprobs)
        assert output.num_cached == (end - 1) // PAGE_SIZE * PAGE_SIZE
        assert second.pool.reset_prefix_cache()
    # Of each of the two groups with windows, those that are seen behind each quarter.
    most = 2 * 4 * (WINDOW // PAGE_SIZE + 1)
    assert 0 < transfers.num_read - transfers.num_read_of_first <= most * len(ENDS)
    stop(reading, second)
    stop(computing, first)


def num_names(engine: Engine) -> int:
    """Names of pages that its peers have."""
    assert engine._kv_offload is not None
    return sum(len(peer.names) for peer in engine._kv_offload._peers)
