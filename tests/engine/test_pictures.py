"""Pictures in prompts against transformers, on the tiny model of tests/golden/pictures."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.client import EngineClient
from engine.engine import Engine
from engine.interface.config import TILE_SIZE, EngineConfig
from engine.interface.types import PromptPicture, TokenEvent
from engine.models.open_model import open_model
from sampling.host.params import SamplingParams
from tests.golden.pictures.tiny_folder import GOLDEN, write_tiny_folder
from tests.golden.pictures.tiny_pictures import tiny_picture

PROMPTS: list[dict[str, Any]] = GOLDEN["prompts"]
SIZE = GOLDEN["config"]["vision_config"]["image_size"]
NUM_TOKENS = GOLDEN["config"]["mm_tokens_per_image"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("gemma3"))


def pictures_of(prompt: dict[str, Any]) -> list[PromptPicture]:
    pictures = []
    for name, start in prompt["pictures"]:
        pixels = tiny_picture(name, SIZE)
        pictures.append(PromptPicture(start, NUM_TOKENS, hashlib.sha256(pixels.data).digest(), pixels))
    return pictures


def load(folder: Path, backend: str, **changes: Any) -> Engine:
    options: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": TILE_SIZE, "page_size": 4, **changes}
    config = EngineConfig(
        dtype="float32", matmul_backend=backend, attention_backend=backend, max_model_len=160, **options
    )
    return Engine.load(folder, config, lambda stage, done, total: None)


async def ask(client: EngineClient, prompt: dict[str, Any], **options: Any) -> list[TokenEvent]:
    params = SamplingParams(max_tokens=len(prompt["output_token_ids"]), temperature=0.0, ignore_eos=True, logprobs=0)
    stream = client.submit(prompt["prompt_token_ids"], params, pictures=pictures_of(prompt), **options)
    return [event async for event in stream]


def tokens_of(events: list[TokenEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]


def assert_logprobs(events: list[TokenEvent], prompt: dict[str, Any]) -> None:
    """Of the first tokens, whose logits the golden has."""
    got = [logprobs.logprob for event in events for logprobs in event.logprobs or ()]
    for logprob, logits, token in zip(got, prompt["logits"], prompt["output_token_ids"], strict=False):
        row = np.array(logits)
        expected = row[token] - np.log(np.exp(row - row.max()).sum()) - row.max()
        assert abs(logprob - expected) < 1e-4


@pytest.mark.parametrize("backend", ["xla", "native"])
async def test_an_engine_that_sees(folder: Path, backend: str, request: pytest.FixtureRequest) -> None:
    """One engine, which takes long to compile, and few pages."""
    if backend == "native":
        request.getfixturevalue("native")
    engine = load(folder, backend, num_pages=72)
    client = EngineClient(engine)
    client.start(asyncio.get_running_loop())
    try:
        await tokens_are_those_of_transformers(client)
        await one_changed_pixel_is_another_picture(client)
        await aborted_requests_hold_no_embeddings(engine, client)
        await a_sleeping_engine_forgets_its_embeddings(client)
        assert client.stats().compiles_after_ready == 0
    finally:
        client.shutdown()
    engine.pool.check()


async def tokens_are_those_of_transformers(client: EngineClient) -> None:
    """All prompts at once, and then each again, when the prefix cache has its pictures."""
    together = await asyncio.gather(*(ask(client, prompt) for prompt in PROMPTS))
    for prompt, events in zip(PROMPTS, together, strict=True):
        assert tokens_of(events) == prompt["output_token_ids"]
        assert_logprobs(events, prompt)
    for prompt in PROMPTS:
        for _ in range(2):
            events = await ask(client, prompt)
            assert tokens_of(events) == prompt["output_token_ids"]
            assert_logprobs(events, prompt)
        assert events[-1].num_cached_tokens == (len(prompt["prompt_token_ids"]) - 1) // 4 * 4
    stats = client.stats()
    assert stats.encoder_runs == 5  # the embeddings of all five pictures are kept
    assert stats.mm_cache_queries - stats.mm_cache_hits == 5


async def one_changed_pixel_is_another_picture(client: EngineClient) -> None:
    prompt = PROMPTS[0]
    await ask(client, prompt)
    num_runs = client.stats().encoder_runs
    pixels = tiny_picture("a", SIZE)
    pixels[3, 5, 1] ^= 1
    start = prompt["pictures"][0][1]
    changed = PromptPicture(start, NUM_TOKENS, hashlib.sha256(pixels.data).digest(), pixels)
    params = SamplingParams(max_tokens=2, temperature=0.0)
    events = [event async for event in client.submit(prompt["prompt_token_ids"], params, pictures=[changed])]
    assert events[-1].num_cached_tokens == start // 4 * 4
    assert client.stats().encoder_runs == num_runs + 1


async def aborted_requests_hold_no_embeddings(engine: Engine, client: EngineClient) -> None:
    assert await client.lifecycle.reset_prefix_cache()
    waiting = [asyncio.ensure_future(ask(client, prompt, request_id=f"r{at}")) for at, prompt in enumerate(PROMPTS)]
    await asyncio.sleep(0)
    for at in range(len(PROMPTS)):
        client.abort(f"r{at}")
    await asyncio.gather(*waiting)
    assert tokens_of(await ask(client, PROMPTS[3])) == PROMPTS[3]["output_token_ids"]
    assert engine.pictures is not None
    assert engine.pictures.cache.num_held == 0


async def a_sleeping_engine_forgets_its_embeddings(client: EngineClient) -> None:
    num_runs = client.stats().encoder_runs
    await client.lifecycle.sleep()
    await client.lifecycle.wake()
    assert tokens_of(await ask(client, PROMPTS[0])) == PROMPTS[0]["output_token_ids"]
    assert client.stats().encoder_runs == num_runs + 1


def test_the_model_reads_text_alone_where_the_configuration_says_so(folder: Path) -> None:
    opened = open_model(folder, language_model_only=True)
    assert opened.model.encoder is None
    assert not any("vision" in leaf.name for leaf in opened.model.leaves())


def test_settings_beside_pictures_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"prefix_cache_dir is .* which a model that sees pictures cannot have"):
        load(folder, "xla", prefix_cache_dir=str(tmp_path))
