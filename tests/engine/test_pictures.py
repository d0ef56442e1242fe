"""Pictures in prompts against transformers, on the tiny models of tests/golden/pictures."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import engine.engine_plan
from engine.client import EngineClient
from engine.engine import Engine
from engine.interface.config import TILE_SIZE, EngineConfig
from engine.interface.types import PromptPicture, TileMap, TokenEvent
from engine.models.encoders.picture_tensors import is_of_pictures
from engine.models.open_model import OpenModel, open_model
from engine.step.picture_encoding import LAYER
from sampling.host.params import SamplingParams
from tests.golden.pictures.tiny_folder import write_tiny_folder
from tests.golden.pictures.tiny_pictures import (
    GRIDS,
    MAPS,
    VIDEOS,
    tiny_patches,
    tiny_picture,
    tiny_tiles,
    tiny_video,
    tokens_of_map,
)
from tests.patience import PATIENCE_S
from tests.thoroughness import IS_FULL, some

FOLDER = Path(__file__).parents[1] / "golden" / "pictures"
# Of a picture, or of a tile of one, where all have one size.
NUM_TOKENS = {"gemma3": 16, "smolvlm": 4, "internvl": 4, "llama4": 4}


OTHERS = ["smolvlm", "qwen2_5_vl"]  # tiles and windows; each compiles for 10 s
if IS_FULL:
    OTHERS += [
        "gemma4", "gemma4_both", "qwen3_vl", "qwen3_5", "qwen3_vl_moe", "qwen3_5_moe", "mistral3", "internvl",
        "lfm2_vl", "llama4", "llava_next",
    ]  # fmt: skip


class Golden:
    """A tiny model, and what transformers computes with it."""

    def __init__(self, name: str) -> None:
        values: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        self.config: dict[str, Any] = values["config"]
        self.prompts: list[dict[str, Any]] = values["prompts"]
        self.num_tokens = NUM_TOKENS.get(name, 0)
        size = self.config["vision_config"].get("image_size")
        self.size: int = (size[0] if isinstance(size, list) else size) if self.num_tokens else 0
        self.has_row_ends = name == "mistral3"
        self.has_states = "linear_attention" in (self.config.get("text_config") or {}).get("layer_types", ())
        self.values = values

    def write(self, path: Path) -> Path:
        return write_tiny_folder(path, self.values)

    def pictures_of(self, prompt: dict[str, Any]) -> list[PromptPicture]:
        pictures = []
        for name, start in prompt["pictures"]:
            if self.config["model_type"] == "llava_next":
                pixels = tiny_tiles(name, self.config["vision_config"]["image_size"])
                grid, digest = TileMap(*MAPS[name][1]).grid, hashlib.sha256(pixels.data).digest()
                pictures.append(PromptPicture(start, tokens_of_map(name, 3), digest, pixels, grid))
                continue
            if not self.size:
                pictures.append(self._picture_of_any_size(name, start))
                continue
            pixels = tiny_picture(name, self.size)
            pictures.append(PromptPicture(start, self.num_tokens, hashlib.sha256(pixels.data).digest(), pixels))
        return pictures

    def _picture_of_any_size(self, name: str, start: int) -> PromptPicture:
        vision = self.config["vision_config"]
        names = ("spatial_merge_size", "pooling_kernel_size", "downsample_factor")
        merge_size = next(table[name] for table in (vision, self.config) for name in names if name in table)
        pixels = tiny_patches(name, vision["patch_size"], merge_size)
        rows, columns = GRIDS[name]
        digest = hashlib.sha256(pixels.data).digest()
        return PromptPicture(start, rows * columns, digest, pixels, (rows, columns), self.has_row_ends)

    def moments_of(self, prompt: dict[str, Any]) -> list[PromptPicture]:
        """The pictures and the moments of videos of a prompt."""
        vision, made = self.config["vision_config"], []
        for name, at, start, time in prompt["moments"]:
            if name not in VIDEOS:
                made.append(self._picture_of_any_size(name, start))
                continue
            pixels = tiny_video(name, vision["patch_size"], vision["spatial_merge_size"])[at]
            rows, columns, _ = VIDEOS[name]
            digest = hashlib.sha256(pixels.data).digest()
            made.append(PromptPicture(start, rows * columns, digest, pixels, (rows, columns), time=time))
        return made


GEMMA = Golden("gemma3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return GEMMA.write(tmp_path_factory.mktemp("gemma3"))


def load(folder: Path, backend: str, **changes: Any) -> Engine:
    options: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": TILE_SIZE, "page_size": 4, **changes}
    config = EngineConfig(
        dtype="float32", matmul_backend=backend, attention_backend=backend, max_model_len=160, **options
    )
    return Engine.load(folder, config, lambda stage, done, total: None)


async def ask(client: EngineClient, prompt: dict[str, Any], golden: Golden = GEMMA, **options: Any) -> list[TokenEvent]:
    return await ask_about(client, prompt, golden.pictures_of(prompt), **options)


async def ask_about(
    client: EngineClient, prompt: dict[str, Any], pictures: list[PromptPicture], **options: Any
) -> list[TokenEvent]:
    params = SamplingParams(max_tokens=len(prompt["output_token_ids"]), temperature=0.0, ignore_eos=True, logprobs=0)
    stream = client.submit(prompt["prompt_token_ids"], params, pictures=pictures, **options)
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


@pytest.mark.parametrize("backend", some(["native", "xla"], 1))
async def test_an_engine_that_sees(folder: Path, backend: str, request: pytest.FixtureRequest) -> None:
    """One engine, which takes long to compile (a minute through XLA, so only in a full run), and few pages."""
    if backend == "native":
        request.getfixturevalue("native")
    engine = load(folder, backend, num_pages=72)
    client = EngineClient(engine)
    client.start(asyncio.get_running_loop())
    try:
        await tokens_are_those_of_transformers(client, GEMMA)
        await one_changed_pixel_is_another_picture(client)
        await other_salts_share_no_embeddings(client)
        await aborted_requests_hold_no_embeddings(engine, client)
        await a_sleeping_engine_forgets_its_embeddings(client)
        await steps_go_on_while_a_picture_is_encoded(engine, client)
        await a_call_waits_for_the_program_that_encodes(engine, client)
        assert client.stats().compiles_after_ready == 0
    finally:
        client.shutdown()
    engine.pool.check()


@pytest.mark.parametrize("name", OTHERS)
async def test_other_families(name: str, native: str, tmp_path: Path) -> None:
    golden = Golden(name)
    client = EngineClient(load(golden.write(tmp_path), "native"))
    client.start(asyncio.get_running_loop())
    try:
        await tokens_are_those_of_transformers(client, golden)
        if (FOLDER / f"{name}_videos.json").exists():
            await videos_are_those_of_transformers(client, golden, name)
        assert client.stats().compiles_after_ready == 0
    finally:
        client.shutdown()


async def videos_are_those_of_transformers(client: EngineClient, golden: Golden, name: str) -> None:
    """Together, and again from the prefix cache, which knows how far the moments of a video are apart."""
    prompts = json.loads((FOLDER / f"{name}_videos.json").read_text(encoding="utf-8"))["prompts"]

    async def check(prompt: dict[str, Any]) -> int:
        events = await ask_about(client, prompt, golden.moments_of(prompt))
        assert tokens_of(events) == prompt["output_token_ids"]
        assert_logprobs(events, prompt)
        return events[-1].num_cached_tokens

    await asyncio.gather(*map(check, prompts))
    for prompt in prompts:
        assert await check(prompt) > 0
    moments = golden.moments_of(prompts[0])
    if moments[1].time is not None:
        slower = [replace(each, time=None if each.time is None else each.time + 7) for each in moments]
        events = await ask_about(client, prompts[0], slower)
        assert events[-1].num_cached_tokens == moments[1].start // 4 * 4


async def tokens_are_those_of_transformers(client: EngineClient, golden: Golden) -> None:
    """All prompts at once, and then each again, when the prefix cache has its pictures."""
    together = await asyncio.gather(*(ask(client, prompt, golden) for prompt in golden.prompts))
    for prompt, events in zip(golden.prompts, together, strict=True):
        assert tokens_of(events) == prompt["output_token_ids"]
        assert_logprobs(events, prompt)
    for prompt in golden.prompts:
        for _ in range(2):
            events = await ask(client, prompt, golden)
            assert tokens_of(events) == prompt["output_token_ids"]
            assert_logprobs(events, prompt)
        num_whole = (len(prompt["prompt_token_ids"]) - 1) // 4 * 4
        if golden.has_states:  # recurrent layers go on from the last of some snapshots
            assert 0 < events[-1].num_cached_tokens <= num_whole
        else:
            assert events[-1].num_cached_tokens == num_whole
    stats = client.stats()
    assert stats.encoder_runs == 5  # the embeddings of all five pictures are kept
    assert stats.mm_cache_queries - stats.mm_cache_hits == 5


async def one_changed_pixel_is_another_picture(client: EngineClient) -> None:
    prompt = GEMMA.prompts[0]
    await ask(client, prompt)
    num_runs = client.stats().encoder_runs
    pixels = tiny_picture("a", GEMMA.size)
    pixels[3, 5, 1] ^= 1
    start = prompt["pictures"][0][1]
    changed = PromptPicture(start, GEMMA.num_tokens, hashlib.sha256(pixels.data).digest(), pixels)
    params = SamplingParams(max_tokens=2, temperature=0.0)
    events = [event async for event in client.submit(prompt["prompt_token_ids"], params, pictures=[changed])]
    assert events[-1].num_cached_tokens == start // 4 * 4
    assert client.stats().encoder_runs == num_runs + 1


async def other_salts_share_no_embeddings(client: EngineClient) -> None:
    num_runs = client.stats().encoder_runs
    for salt in ("a", "b", "a"):
        await ask(client, GEMMA.prompts[0], cache_salt=salt)
    assert client.stats().encoder_runs == num_runs + 2


async def aborted_requests_hold_no_embeddings(engine: Engine, client: EngineClient) -> None:
    assert await client.lifecycle.reset_prefix_cache()
    waiting = [
        asyncio.ensure_future(ask(client, prompt, request_id=f"r{at}")) for at, prompt in enumerate(GEMMA.prompts)
    ]
    await asyncio.sleep(0)
    for at in range(len(GEMMA.prompts)):
        client.abort(f"r{at}")
    await asyncio.gather(*waiting)
    assert tokens_of(await ask(client, GEMMA.prompts[3])) == GEMMA.prompts[3]["output_token_ids"]
    assert engine.pictures is not None
    assert engine.pictures.cache.num_held == 0


async def a_sleeping_engine_forgets_its_embeddings(client: EngineClient) -> None:
    num_runs = client.stats().encoder_runs
    await client.lifecycle.sleep()
    await client.lifecycle.wake()
    assert tokens_of(await ask(client, GEMMA.prompts[0])) == GEMMA.prompts[0]["output_token_ids"]
    assert client.stats().encoder_runs == num_runs + 1


class Gate:
    """Holds up the programs of the layers of an encoder."""

    def __init__(self, engine: Engine) -> None:
        assert engine.pictures is not None
        self.reached, self.opened = threading.Event(), threading.Event()
        programs = engine.runner.programs.compiled
        self._keys = [key for key in programs._programs if isinstance(key, tuple) and key[0] == LAYER]
        self._programs, self._compiled = {key: programs[key] for key in self._keys}, programs

    def __enter__(self) -> Gate:
        def held(program: Callable[..., Any], *arguments: Any) -> Any:
            self.reached.set()
            assert self.opened.wait(PATIENCE_S)
            return program(*arguments)

        self._compiled._programs |= {key: partial(held, program) for key, program in self._programs.items()}
        return self

    def __exit__(self, *error: object) -> None:
        self.opened.set()
        self._compiled._programs |= self._programs


async def steps_go_on_while_a_picture_is_encoded(engine: Engine, client: EngineClient) -> None:
    assert await client.lifecycle.reset_prefix_cache()
    with Gate(engine) as gate:
        seeing = asyncio.create_task(ask(client, GEMMA.prompts[0], cache_salt="held"))
        assert await asyncio.to_thread(gate.reached.wait, PATIENCE_S)
        params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
        events = [event async for event in client.submit([7, 8, 9], params)]
        assert len(tokens_of(events)) == 12
        assert not seeing.done()
    assert tokens_of(await seeing) == GEMMA.prompts[0]["output_token_ids"]


async def a_call_waits_for_the_program_that_encodes(engine: Engine, client: EngineClient) -> None:
    """And what was encoded before a sleep is not stored behind it."""
    num_runs = client.stats().encoder_runs
    with Gate(engine) as gate:
        seeing = asyncio.create_task(ask(client, GEMMA.prompts[0], cache_salt="asleep"))
        assert await asyncio.to_thread(gate.reached.wait, PATIENCE_S)
        sleeping = asyncio.create_task(client.lifecycle.sleep())
        # The call has begun when the loop says so, and then waits.
        while not client._engine_loop.is_in_call:
            await asyncio.sleep(0.001)
        assert not sleeping.done()
    await sleeping
    await client.lifecycle.wake()
    assert tokens_of(await seeing) == GEMMA.prompts[0]["output_token_ids"]
    assert client.stats().encoder_runs == num_runs + 1


def test_the_model_reads_text_alone_where_the_configuration_says_so(folder: Path) -> None:
    opened = open_model(folder, language_model_only=True)
    assert opened.model.encoder is None
    assert not any("vision" in leaf.name for leaf in opened.model.leaves())


def test_settings_beside_pictures_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"prefix_cache_dir is .* which a model that sees pictures cannot have"):
        load(folder, "xla", prefix_cache_dir=str(tmp_path))


def test_a_folder_without_the_encoder_that_it_states_is_served_as_text(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stop(opened: OpenModel, config: EngineConfig) -> None:
        raise ValueError("so far")  # before anything is compiled

    monkeypatch.setattr(engine.engine_plan, "refuse_unsupported", stop)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {name: array for name, array in tensors.items() if not is_of_pictures(name)}, tmp_path / "model.safetensors"
    )
    for path, changes, num_warnings in (
        (folder, {}, 0),
        (tmp_path, {"language_model_only": True}, 0),
        (tmp_path, {}, 1),
    ):
        with pytest.raises(ValueError, match="so far"):
            load(path, "xla", **changes)
        assert caplog.text.count("the model is served as one that reads text alone") == num_warnings
