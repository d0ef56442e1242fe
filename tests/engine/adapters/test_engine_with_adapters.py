"""An engine whose requests choose adapters: tokens, pages, loads under way, and sleep."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from engine.client import EngineClient
from engine.engine import Engine
from engine.interface.config import TILE_SIZE, AdapterLimits, EngineConfig
from engine.interface.types import AdapterChoice
from sampling.host.params import SamplingParams
from tests.engine.adapters.peft_adapters import ALL, ATTENTION, merged, pairs_of, write_adapter
from tests.engine.models.test_architectures import GOLDENS, tensors_of
from tests.golden.adapters.converted import FILE, SCALE, converted_pairs

PROMPT = GOLDENS["llama"]["prompts"][-1]["prompt_token_ids"]
SEEDS = {"a": 3, "b": 1000, "c": 2000}
CONFIG = EngineConfig(
    dtype="float32", max_num_seqs=4, max_num_batched_tokens=TILE_SIZE, num_pages=200, page_size=4, max_model_len=128,
    adapters=AdapterLimits(2, 4),
)  # fmt: skip


def silent(_stage: str, _done: int, _total: int) -> None:
    return


def write_model(folder: Path, name: str) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(GOLDENS[name]["config"]), encoding="utf-8")
    save_file(tensors_of(GOLDENS[name]), folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, three adapters, and the models in which these are merged."""
    root = tmp_path_factory.mktemp("adapters")
    model = write_model(root / "model", "llama")
    for name, seed in SEEDS.items():
        pairs = pairs_of(model, ALL if name == "a" else ATTENTION, 4, seed)
        write_adapter(root / name, pairs, {"r": 4, "lora_alpha": 6})
        merged(model, root / f"merged-{name}", pairs, dict.fromkeys(ALL, 1.5))
    return root


@pytest.fixture(scope="module")
def engine(root: Path) -> Engine:
    return Engine.load(root / "model", CONFIG, silent)


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[EngineClient]:
    client = EngineClient(engine)
    client.start(asyncio.get_running_loop())
    yield client
    await client.lifecycle.reset_prefix_cache()
    client.shutdown()
    engine.pool.check()
    assert engine.stats().compiles_after_ready == 0


async def load(client: EngineClient, root: Path, slot: int, name: str) -> AdapterChoice:
    weights = client.read_adapter(root / name)
    await client.load_adapter(slot, weights)
    return AdapterChoice(slot, weights.digest)


async def run(
    client: EngineClient, adapter: AdapterChoice | None, prompt: Sequence[int] = PROMPT, salt: str | None = None
) -> tuple[list[int], int]:
    """Twelve greedy tokens, and how many of the prompt's came from the prefix cache."""
    params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    events = [event async for event in client.submit(prompt, params, adapter=adapter, cache_salt=salt)]
    return [token_id for event in events for token_id in event.token_ids], events[-1].num_cached_tokens


async def test_adapters_in_one_batch_give_the_tokens_of_merged_weights(client: EngineClient, root: Path) -> None:
    a, b = await load(client, root, 0, "a"), await load(client, root, 1, "b")
    together = await asyncio.gather(*(run(client, adapter) for adapter in (a, None, b, None)))
    tokens = [tokens for tokens, _ in together]
    assert len({tuple(each) for each in tokens}) == 3
    for adapter, expected in ((a, tokens[0]), (None, tokens[1]), (b, tokens[2])):
        await client.lifecycle.reset_prefix_cache()
        assert (await run(client, adapter))[0] == expected
    for name, expected in (("merged-a", tokens[0]), ("merged-b", tokens[2]), ("model", tokens[1])):
        await client.lifecycle.update_weights(root / name)
        assert (await run(client, None))[0] == expected
    assert (await run(client, a))[0] == tokens[0]  # adapters stay when the weights are replaced


async def test_a_file_of_the_converter_gives_the_tokens_of_merged_weights(
    client: EngineClient, root: Path, tmp_path: Path
) -> None:
    """The converter of llama.cpp wrote it, of some modules only."""
    pairs = converted_pairs(root / "model")
    whole = merged(root / "model", tmp_path / "merged", pairs, dict.fromkeys(ALL, SCALE))
    tokens, _ = await run(client, await load(client, FILE.parent, 0, FILE.name))
    plain, _ = await run(client, None)
    await client.lifecycle.update_weights(whole)
    expected, _ = await run(client, None)
    await client.lifecycle.update_weights(root / "model")
    assert tokens == expected != plain


async def test_pages_of_one_adapter_are_never_those_of_another(client: EngineClient, root: Path) -> None:
    a, b = await load(client, root, 0, "a"), await load(client, root, 1, "b")
    (tokens, first), (again, second) = await run(client, a), await run(client, a)
    assert (first, again) == (0, tokens)
    assert second > 0
    assert (await run(client, b))[1] == 0
    assert (await run(client, None))[1] == 0
    assert (await run(client, replace(a, scale=0.5)))[1] == 0
    assert (await run(client, None, salt=a.page_key))[1] == 0  # a client cannot write into an adapter's pages
    moved = await load(client, root, 1, "a")  # the same weights in another slot
    assert await run(client, moved) == (tokens, second)


async def test_a_load_beside_a_stream_changes_no_token_of_it(client: EngineClient, root: Path) -> None:
    a = await load(client, root, 0, "a")
    expected, _ = await run(client, a)
    running = asyncio.create_task(run(client, a, salt="other"))
    for name in ("b", "c", "b"):
        await load(client, root, 1, name)
    assert (await running)[0] == expected


async def test_adapters_are_there_after_a_sleep_without_weights(client: EngineClient, root: Path) -> None:
    a = await load(client, root, 0, "a")
    b = await load(client, root, 1, "b")
    expected = [(await run(client, adapter))[0] for adapter in (a, b)]
    c = await load(client, root, 1, "c")
    of_c = (await run(client, c))[0]
    await client.lifecycle.sleep(forget_weights=True)
    b = await load(client, root, 1, "b")  # while it sleeps
    waiting = asyncio.create_task(run(client, b))
    await client.lifecycle.wake()
    assert (await waiting)[0] == expected[1] != of_c
    assert (await run(client, a))[0] == expected[0]


async def test_a_model_loaded_without_room_takes_no_adapter(root: Path) -> None:
    with pytest.raises(ValueError, match=r"Lfm2ForCausalLM takes no adapters \(lora\) yet"):
        Engine.load(write_model(root / "lfm2", "lfm2"), CONFIG, silent)
