"""One model over two and four devices, which XLA makes of one CPU; `test_tensor_parallel.py` runs these tests."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.adapters.adapted_products import with_adapters
from engine.adapters.adapter_stacks import AdapterStacks
from engine.adapters.targets import targets_of
from engine.backends.backends import kv_dtype
from engine.client import EngineClient
from engine.engine import Engine
from engine.interface.config import TILE_SIZE, AdapterLimits, EngineConfig
from engine.interface.types import AdapterChoice
from engine.models.open_model import open_model
from engine.parallel.mesh import open_mesh
from engine.parallel.placement import choose_devices
from engine.step.shapes import StepShape
from engine.weights.layout import Precision
from sampling.host.params import SamplingParams
from tests.engine.adapters.peft_adapters import ALL, merged, pairs_of, write_adapter
from tests.forward_steps import QUICK_TO_COMPILE, ForwardSteps
from tests.golden.architectures.tiny_weights import tiny_weights
from tests.thoroughness import IS_FULL, some

FOLDER = Path(__file__).parents[2] / "golden" / "architectures"
# With biases, norms of heads, norms behind blocks, fused tensors and experts.
NAMES = ("llama", "qwen2", "gemma3", "qwen3", "phi3", "qwen3_moe")


def silent(stage: str, done: int, total: int) -> None:
    """Nobody waits for the progress."""


def golden_of(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def write_folder(folder: Path, config: dict[str, Any], shapes: dict[str, list[int]], seed: int) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tiny_weights(config["architectures"][0], shapes, seed), folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for name in NAMES:
        golden = golden_of(name)
        write_folder(root / name, golden["config"], golden["shapes"], golden["seed"])
    # Of as many heads of keys as of queries, so that four devices can share them.
    golden = golden_of("llama")
    config = {**golden["config"], "num_key_value_heads": golden["config"]["num_attention_heads"], "vocab_size": 254}
    shapes = dict(golden["shapes"])
    for tensor in golden["shapes"]:
        if re.search(r"[kv]_proj", tensor):
            shapes[tensor] = shapes[re.sub("[kv]_proj", "q_proj", tensor)]
        if re.search("embed_tokens|lm_head", tensor):
            shapes[tensor] = [254, *shapes[tensor][1:]]
    write_folder(root / "four", config, shapes, 7)
    return root


def configuration(num_devices: int, **changes: Any) -> EngineConfig:
    backends = {} if num_devices > 1 else {"matmul_backend": "xla", "attention_backend": "xla"}
    return EngineConfig(dtype="float32", tensor_parallel=num_devices, **backends, **changes)


@pytest.mark.parametrize("name", some(NAMES, 2))
def test_two_devices_give_the_logits_and_tokens_of_transformers(folders: Path, name: str) -> None:
    prompts = golden_of(name)["prompts"]
    num_outputs = len(prompts[0]["output_token_ids"])
    steps = ForwardSteps.load(folders / name, configuration(2), QUICK_TO_COMPILE)
    sequences = [prompt["prompt_token_ids"] + prompt["output_token_ids"][:-1] for prompt in prompts]
    got = steps.logits(sequences, num_decoded=num_outputs - 1, chunk=48, shape=StepShape(4, 4), waits=False)
    expected = np.array([prompt["logits"] for prompt in prompts])
    np.testing.assert_allclose(got[:, : expected.shape[1]], expected, rtol=0, atol=1e-4)
    assert got.argmax(axis=-1).tolist() == [prompt["output_token_ids"] for prompt in prompts]


def test_an_adapter_over_two_devices_is_equal_to_merged_weights(folders: Path) -> None:
    """Beside a prompt without one, with pairs of leaves whose outputs and of leaves whose inputs are split."""
    pairs = pairs_of(folders / "llama", ALL, 4, seed=7)
    adapter = write_adapter(folders / "adapter", pairs, {"r": 4, "lora_alpha": 6})
    whole = merged(folders / "llama", folders / "merged", pairs, dict.fromkeys(ALL, 1.5))
    config, opened = configuration(2), open_model(folders / "llama")
    devices, precision = choose_devices(config, opened.model), Precision.of_engine(config)
    targets, layout = targets_of(opened.model), devices.backends.weights
    stacks = AdapterStacks(targets, AdapterLimits(2, 4), layout, precision, ("llama",), devices.pairs)
    weights, expected_weights = (
        open_model(path).load(devices.backends.weights, precision, silent).params for path in (folders / "llama", whole)
    )
    params = stacks.load(stacks.attach(weights), 1, stacks.read(adapter))
    backends, placement = with_adapters(devices.backends), devices.place(params)
    steps = ForwardSteps(
        params, opened.model, backends, kv_dtype(config, backends), QUICK_TO_COMPILE, placement
    )  # fmt: skip
    prompts = [prompt["prompt_token_ids"] + prompt["output_token_ids"] for prompt in golden_of("llama")["prompts"][:2]]
    options = {"num_decoded": 5, "chunk": 48, "shape": StepShape(2, 2)}
    beside = steps.logits(prompts, adapters=[AdapterChoice(1, ""), None], **options)
    plain = steps.logits(prompts, **options)
    steps.params = stacks.attach(expected_weights)
    np.testing.assert_allclose(beside[0], steps.logits(prompts, **options)[0], rtol=0, atol=1e-4)
    assert np.abs(beside[0] - plain[0]).max() > 0.1
    np.testing.assert_array_equal(beside[1], plain[1])
    halves = (
        pairs for name in ("attention_output", "gate_up") for pairs in (params[name].pairs.down, params[name].pairs.up)
    )
    assert [half.addressable_shards[0].data.nbytes * 2 == half.nbytes for half in halves] == [True, False, False, True]


def test_four_devices_give_the_logits_of_one(folders: Path) -> None:
    sequence = [[int(token) for token in np.random.default_rng(1).integers(1, 250, 100)]]
    shape = StepShape(1, 2)
    one, four = (
        ForwardSteps.load(folders / "four", configuration(count), QUICK_TO_COMPILE).logits(
            sequence, num_decoded=5, shape=shape
        )
        for count in (1, 4)
    )
    assert four.shape == one.shape == (1, 6, 254)
    np.testing.assert_allclose(four, one, rtol=0, atol=1e-4)


@pytest.mark.skipif(not IS_FULL, reason="EAGRE_FULL=1 compiles an engine over four devices")
def test_each_device_holds_its_share_of_the_weights_and_of_the_pages(folders: Path) -> None:
    """All but the norms, which are few."""
    engine = Engine.load(
        folders / "four", configuration(4, max_num_seqs=1, num_pages=5, max_num_batched_tokens=64), silent
    )
    arrays = [array for array in jax.live_arrays() if array.ndim >= 2 and len(array.sharding.device_set) == 4]
    split = [array for array in arrays if array.addressable_shards[0].data.nbytes * 4 == array.nbytes]
    pages = [array for array in split if array.ndim == 6]
    assert pages, "the pages are split"
    matrices = [array for array in split if array.ndim < 6]
    assert sum(array.nbytes for array in matrices) > 0.95 * engine.model_info.num_parameters * 4
    for array in split:
        assert {shard.device for shard in array.addressable_shards} == set(jax.devices()[:4])
    engine.close()


def test_half_a_layer_costs_one_exchange(folders: Path) -> None:
    """In the compiled program: two in the backend of the loop over layers, one of the embedding, one of the logits."""
    steps = ForwardSteps.load(folders / "llama", configuration(2))
    text = steps.compiled_text(StepShape(1, 0))
    assert len(re.findall(r" = \S+ all-reduce(?:-start)?\(", text)) == 2 + 1
    assert len(re.findall(r" = \S+ all-gather(?:-start)?\(", text)) == 1
    for other in ("all-to-all", "collective-permute", "reduce-scatter"):
        assert f" {other}" not in text


@pytest.mark.skipif(not IS_FULL, reason="EAGRE_FULL=1 compiles an engine over two devices")
@pytest.mark.parametrize(("name", "num_pages"), [("llama", 46), ("gemma3", 131)])
async def test_the_engine_serves_over_two_devices(folders: Path, name: str, num_pages: int) -> None:
    """Cached, preempted, with every feature of sampling, asleep and awake, and with its weights read again.

    The second has windows that give pages back, and so three groups of layers with pages of their own.
    """
    golden = golden_of(name)
    prompts = [prompt for prompt in golden["prompts"] if len(prompt["prompt_token_ids"]) > TILE_SIZE]
    config = configuration(
        2, max_num_seqs=2, max_num_batched_tokens=TILE_SIZE, num_pages=num_pages, page_size=4, max_model_len=128
    )
    engine = Engine.load(folders / name, config, silent)
    assert engine.stats().num_page_groups == (1 if name == "llama" else 3)
    client = EngineClient(engine)
    client.start(asyncio.get_running_loop())

    async def tokens(prompt: dict[str, Any], **options: Any) -> list[int]:
        params = SamplingParams(max_tokens=len(prompt["output_token_ids"]), ignore_eos=True, **options)
        events = [event async for event in client.submit(prompt["prompt_token_ids"], params)]
        return [token_id for event in events for token_id in event.token_ids]

    async def check() -> None:
        got = await asyncio.gather(*(tokens(prompt, temperature=0.0) for prompt in prompts))
        assert got == [prompt["output_token_ids"] for prompt in prompts]

    await check()
    await check()
    features = {"temperature": 1.0, "seed": 5, "top_k": 9, "min_p": 0.01, "presence_penalty": 0.5, "logprobs": 3}
    first = await tokens(prompts[0], **features)
    assert await tokens(prompts[0], **features) == first
    for drop_weights in (False, True):
        await client.lifecycle.sleep(drop_weights=drop_weights)
        await client.lifecycle.wake()
        await check()
    await client.lifecycle.update_weights(folders / name)
    await check()
    stats = client.stats()
    assert stats.num_preemptions > 0 or name == "gemma3"  # two sequences fit once their windows give back
    assert stats.prefix_cache_hits > 0
    assert stats.compiles_after_ready == 0
    client.shutdown()
    engine.pool.check()


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("llama", {"tensor_parallel": 4}, "does not divide the model's 2 heads of keys"),
        ("qwen3_moe", {"tensor_parallel": 4}, "does not divide"),
        ("four", {"tensor_parallel": 8}, "does not divide"),
        ("four", {"tensor_parallel": 3}, "does not divide"),
        (
            "four",
            {"tensor_parallel": 2, "matmul_backend": "native"},
            "matmul_backend is native, but tensor_parallel is 2",
        ),
        ("four", {"tensor_parallel": 2, "quantize": "int8"}, "quantize is int8"),
    ],
)
def test_what_cannot_be_split_is_refused_by_name(
    folders: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Engine.load(folders / name, EngineConfig(**changes), silent)


def test_more_devices_than_there_are_are_refused() -> None:
    with pytest.raises(ValueError, match="tensor_parallel is 8, but this process has 4 cpu devices; XLA_FLAGS="):
        open_mesh(8)
