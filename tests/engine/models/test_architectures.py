"""Every architecture against transformers, on the tiny models of tests/golden/architectures.

Where the best token of each logits is that of the reference, greedy decoding gives the reference's tokens.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.backends.backends import BACKENDS
from engine.backends.base.backend import Backend
from engine.client import EngineClient
from engine.engine import Engine
from engine.interface.config import TILE_SIZE, EngineConfig
from engine.models.registry import ARCHITECTURES
from engine.step.shapes import StepShape
from sampling.host.params import SamplingParams
from tests.engine.models.same_model import assert_same_model
from tests.engine.models.test_aliases import ALIASES
from tests.engine.models.twins.gguf_twins import write_gguf
from tests.forward_steps import QUICK_TO_COMPILE, ForwardSteps
from tests.golden.architectures.tiny_weights import tiny_weights
from tests.thoroughness import IS_FULL, some

FOLDER = Path(__file__).parents[2] / "golden" / "architectures"
GOLDENS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))
}
POOLED: dict[str, list[dict[str, list[float]]]] = json.loads(
    (FOLDER.parent / "pooled.json").read_text(encoding="utf-8")
)["models"]
SHAPE = StepShape(4, 4)  # of every step, so that each model compiles one program for each backend
CHUNK = 48  # tokens of a prompt in a step; no multiple of pages or tiles

# Tokens of the two prompts that go through the engine: their pages have room for both until they have some output.
CROWDED = (70, 100)

# Pages that take no memory have a snapshot of states for each 448 tokens, and four more: so few pages as there are here
# have no more than those that the output takes.
WITH_FEW_SNAPSHOTS = {"mamba", "falcon_mamba", "mamba2"}

# Those that go through the engine too, which compiles for seconds: in a full run all of them, by each backend.
THROUGH_THE_ENGINE = (
    [(name, backend.name) for name in GOLDENS for backend in BACKENDS]
    if IS_FULL
    else [("gemma3", "native"), ("qwen3_moe", "native"), ("qwen3_next", "native")]
)
# GGUF files cannot say which layers have a window, do not rotate or have no experts, or that blocks are sequential.
NOT_IN_GGUF = {
    "ministral", "qwen2_windows", "smollm3_windows", "ernie4_5_moe_interval", "falcon_sequential",
    "gpt_oss_limited", "lfm2_biases", "nemotron_h_moe",
}  # fmt: skip
# Nor what bounds time steps, or that norms come before gates.
NOT_IN_GGUF |= {"granite_hybrid_dense", "falcon_h1_norm_first"}
NOT_IN_GGUF.add("granite_hybrid_attention")  # it is a file of Granite
NOT_IN_GGUF |= {"falcon_alibi", "baichuan_alibi"}  # files of Baichuan mean it by 40 layers
NOT_IN_GGUF.add("cohere2_moe_rms")  # sums of experts
# No files of these architectures are known.
NOT_IN_GGUF |= {
    "olmo_hybrid",
    "olmo_hybrid_rotary",
    "opt",
    "gpt_neo",
    "gptj",
    "codegen",
    "cwm",
    "hyperclovax",
    "helium",
}
NOT_IN_GGUF.add("vaultgemma")
# What GGUF files do not say, because it is the same in all published models.
PUBLISHED: dict[str, dict[str, Any]] = {
    "llama4": {"floor_scale": 8192, "attn_scale": 0.1},
    "qwen3_next_uneven": {"norm_topk_prob": True},
    "minicpm3": {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},
    "phimoe": {
        "router_jitter_noise": 0.01,
        "rope_parameters": GOLDENS["phimoe"]["config"]["rope_parameters"] | {"short_mscale": None, "long_mscale": None},
    },
    "plamo2": {"full_attention_idx": list(range(6))},  # files say nothing of windows
}
# GGUF files of Qwen3.5 hold the heads of delta-nets in another order, which changes the order of sums.
# Those of Falcon-H1 and Jais hold weights that are multiplied.
REORDERED_IN_GGUF = {
    "jais",
    "falcon_h1",
    "falcon_h1_norm",
    "qwen3_5",
    "qwen3_5_pictures",
    "qwen3_5_moe",
    "qwen3_5_moe_pictures",
}
# Those whose bits are compared in other steps, which compiles twice: in a full run all of them.
SAME_IN_COMPANY = ("glm4_moe", "hunyuan_dense", "gpt2", "deepseek_v3")
# Tokens of the longest context that is served, where a model computes long contexts in another way.
CONTEXTS = {"phi3_short": 128, "deepseek_v32": 128}

# The classes with pictures of families whose goldens have text alone, how they rename its tensors, and a tensor of
# theirs that is left where it is.
OF_PICTURES = {
    "gemma3n": "Gemma3nForConditionalGeneration",
    "llama4": "Llama4ForConditionalGeneration",
}
PREFIXES: dict[str, Callable[[str], str]] = {
    "gemma3n": lambda name: name.replace("model.", "model.language_model.", 1),
    "llama4": lambda name: f"language_model.{name}",
}
UNREAD = {"gemma3n": "model.audio_tower.norm.weight", "llama4": "vision_model.class_embedding"}

# Those that XLA computes in full runs alone, because it compiles each for seconds: what is new in them has tests of
# its own, or other goldens.
NATIVE_ALONE = {
    "afmoe", "bailing_moe2", "exaone", "gemma3n", "gemma4_dense", "gemma4_experts", "gemma4_pictures", "glm",
    "internlm2", "kimi_linear", "lfm2_moe", "llama4", "minicpm", "mistral4", "nemotron_h_moe", "olmo_hybrid",
    "olmo_hybrid_rotary", "qwen3_vl_moe", "smallthinker", "smallthinker_softmax",
}  # fmt: skip
# Likewise: variants of families that have another golden.
NATIVE_ALONE |= {
    "arcee", "cohere", "deepseek_v2_lite", "dots1", "ernie4_5_moe_interval", "exaone4_all", "falcon_h1_norm",
    "falcon_h1_norm_first", "falcon_new", "falcon_sequential", "gemma3_pictures", "glm4_moe_lite", "glm4_moe_plain",
    "gpt_neox_sequential", "gpt_oss_limited", "granite_hybrid_attention", "granite_hybrid_dense", "lfm2_biases",
    "llama_linear_biases_tied", "llama_three_one", "ministral", "nemotron_h_moe_latent", "phi3_short", "qwen2_5_vl",
    "qwen2_windows", "qwen3_5_moe_pictures", "qwen3_5_pictures", "qwen3_next_uneven", "qwen3_vl", "seed_oss",
    "smollm3_windows", "smolvlm", "cohere_norms",
    "stablelm_parallel",
}  # fmt: skip
NATIVE_ALONE |= {
    "bailing_moe", "deepseek_v32", "gpt_bigcode", "mamba", "minicpm3", "olmo", "orion", "phimoe", "plamo2", "plamo3",
    "xverse",
}  # fmt: skip
NATIVE_ALONE |= {"baichuan", "baichuan_alibi", "falcon_alibi", "jais", "mimo2", "mpt"}
NATIVE_ALONE |= {
    "cohere2_moe", "cohere2_moe_rms", "dbrx", "deepseek", "glm_dsa", "glm_dsa_shared", "hy_v3", "jais2", "maincoder",
    "mellum", "nanbeige", "qwen",
}  # fmt: skip
NATIVE_ALONE |= {
    "chatglm", "codegen", "codeshell", "cwm", "falcon_mamba", "gpt_neo", "gptj", "helium", "hyperclovax",
    "laguna_features", "openelm", "opt", "pangu", "plm", "refact", "solar_open", "step35", "vaultgemma", "youtu",
}  # fmt: skip
# Those whose heads are too narrow for native attention: XLA's serves beside native products.
WITH_NARROW_HEADS = {"falcon_alibi"}
every_golden = pytest.mark.parametrize(
    ("name", "backend"),
    [
        pytest.param(name, backend, id=f"{backend.name}-{name}")
        for backend in BACKENDS
        for name in GOLDENS
        if IS_FULL or backend.name == "native" or name not in NATIVE_ALONE
    ],
    indirect=["backend"],
)


def tensors_of(golden: dict[str, Any]) -> dict[str, np.ndarray]:
    return tiny_weights(golden["config"]["architectures"][0], golden["shapes"], golden["seed"])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each golden, of its name."""
    root = tmp_path_factory.mktemp("architectures")
    for name, golden in GOLDENS.items():
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(golden["config"]), encoding="utf-8")
        save_file(tensors_of(golden), root / name / "model.safetensors")
    return root


def configuration(body_name: str, name: str = "", **changes: Any) -> EngineConfig:
    """Of a backend, as it computes the golden of a name."""
    attention = "xla" if name in WITH_NARROW_HEADS else body_name
    return EngineConfig(dtype="float32", matmul_backend=body_name, attention_backend=attention, **changes)


def test_every_architecture_has_a_golden() -> None:
    files = (FOLDER.parent / "pictures").glob("*.json")
    goldens = [*GOLDENS.values(), *(json.loads(file.read_text(encoding="utf-8")) for file in files)]
    with_golden = {golden["config"]["architectures"][0] for golden in goldens if "config" in golden}
    decoders = {each.transformers_name for each in ARCHITECTURES if not each.model.is_encoder}
    # Those of encoders are in tests/golden/encoders, and Idefics 3 is another name of SmolVLM. The text in models with
    # pictures has a test of its own where transformers' class has parts that need other packages. Other names of the
    # same models are in test_aliases.py.
    others = {"Idefics3ForConditionalGeneration", *OF_PICTURES.values(), *ALIASES}
    assert with_golden | others == decoders


@every_golden
def test_logits_and_greedy_tokens_are_those_of_transformers(folders: Path, backend: Backend, name: str) -> None:
    """Chunks of prompts and decode rows side by side in each step."""
    prompts = GOLDENS[name]["prompts"]
    num_outputs = len(prompts[0]["output_token_ids"])
    config = configuration(backend.name, name, max_model_len=CONTEXTS.get(name))
    steps = ForwardSteps.load(folders / name, config, QUICK_TO_COMPILE)
    sequences = [prompt["prompt_token_ids"] + prompt["output_token_ids"][:-1] for prompt in prompts]
    got = steps.logits(sequences, num_decoded=num_outputs - 1, chunk=CHUNK, shape=SHAPE, waits=False)
    expected = np.array([prompt["logits"] for prompt in prompts])
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(got[:, : expected.shape[1]], expected, rtol=0, atol=1e-4)
    assert got.argmax(axis=-1).tolist() == [prompt["output_token_ids"] for prompt in prompts]


@pytest.mark.parametrize("name", GOLDENS if IS_FULL else SAME_IN_COMPANY)
def test_a_sequence_has_the_same_bits_alone_and_in_company(folders: Path, native: str, name: str) -> None:
    """In other chunks, and in steps of another shape."""
    prompts = GOLDENS[name]["prompts"]
    num_decoded = len(prompts[0]["output_token_ids"]) - 1
    config = configuration("native", name, max_model_len=CONTEXTS.get(name))
    steps = ForwardSteps.load(folders / name, config, QUICK_TO_COMPILE)
    sequences = [prompt["prompt_token_ids"] + prompt["output_token_ids"][:-1] for prompt in prompts]
    together = steps.logits(sequences, num_decoded=num_decoded, chunk=CHUNK, shape=SHAPE, waits=False)
    alone = steps.logits(sequences[-1:], num_decoded=num_decoded, chunk=33, shape=StepShape(1, 1))
    np.testing.assert_array_equal(alone[0], together[-1])


@pytest.mark.parametrize("name", some(sorted(REORDERED_IN_GGUF), 3))
def test_a_gguf_file_of_another_order_gives_the_same_logits(folders: Path, tmp_path: Path, name: str) -> None:
    golden = GOLDENS[name]
    file = write_gguf(tmp_path / "tiny.gguf", golden["config"], tensors_of(golden))
    sequence = golden["prompts"][-1]["prompt_token_ids"]
    first, second = (
        ForwardSteps.load(path, configuration("xla"), QUICK_TO_COMPILE).logits([sequence], num_decoded=3)
        for path in (folders / name, file)
    )
    np.testing.assert_allclose(first, second, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", [name for name in GOLDENS if name not in NOT_IN_GGUF | REORDERED_IN_GGUF])
def test_a_gguf_file_holds_the_same_model(folders: Path, tmp_path: Path, name: str) -> None:
    golden, folder = GOLDENS[name], folders / name
    file = write_gguf(tmp_path / "tiny.gguf", golden["config"], tensors_of(golden))
    if name in PUBLISHED:
        folder = shutil.copytree(folder, tmp_path / name)
        (folder / "config.json").write_text(json.dumps(golden["config"] | PUBLISHED[name]), encoding="utf-8")
    assert_same_model(folder, file, CONTEXTS.get(name, 1 << 30))


@pytest.mark.parametrize("name", OF_PICTURES)
def test_the_text_of_a_model_with_pictures_is_that_of_a_folder_of_text(
    folders: Path, tmp_path: Path, name: str
) -> None:
    golden, prefix = GOLDENS[name], PREFIXES[name]
    config = {"architectures": [OF_PICTURES[name]], "text_config": golden["config"]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    renamed = {prefix(tensor): values for tensor, values in tensors_of(golden).items()}
    save_file(renamed | {UNREAD[name]: np.zeros(2, np.float32)}, tmp_path / "model.safetensors")
    assert_same_model(tmp_path, folders / name, 1 << 30)


@pytest.mark.parametrize(("name", "body_name"), THROUGH_THE_ENGINE)
async def test_the_engine_gives_the_same_tokens_in_chunks_cached_and_preempted(
    folders: Path, name: str, body_name: str, request: pytest.FixtureRequest
) -> None:
    """Two prompts at once that need more pages than there are, twice, so that the second time finds their prefixes."""
    if body_name == "native":
        request.getfixturevalue("native")
    prompts = [prompt for prompt in GOLDENS[name]["prompts"] if len(prompt["prompt_token_ids"]) in CROWDED]
    config = configuration(
        body_name, name, max_num_seqs=2, max_num_batched_tokens=2 + TILE_SIZE, num_pages=46, page_size=4,
        max_model_len=128,
    )  # fmt: skip
    engine = Engine.load(folders / name, config, lambda stage, done, total: None)
    client = EngineClient(engine)
    client.start(asyncio.get_running_loop())
    num_cached = []
    for _ in range(2):
        for prompt, (token_ids, cached) in zip(prompts, await outputs(client, prompts), strict=True):
            assert token_ids == prompt["output_token_ids"]
            num_cached.append(cached)
    if name in POOLED:
        await check_embeddings(client, name)
    stats = client.stats()
    client.shutdown()
    engine.pool.check()
    assert stats.num_preemptions > 0
    assert max(num_cached[2:]) > 0 or name in WITH_FEW_SNAPSHOTS


async def check_embeddings(client: EngineClient, name: str) -> None:
    """Of all prompts at once, while the prefix cache remembers some: it must not take a token from what is pooled."""
    jobs = [
        (prompt["prompt_token_ids"], pooling, values)
        for prompt, expected in zip(GOLDENS[name]["prompts"], POOLED[name], strict=True)
        for pooling, values in expected.items()
    ]
    got = await asyncio.gather(*(client.embed(token_ids, pooling) for token_ids, pooling, _ in jobs))
    np.testing.assert_allclose(got, [expected for *_, expected in jobs], rtol=0, atol=1e-4)
    assert np.abs(got).max() > 1


async def outputs(client: EngineClient, prompts: list[dict[str, Any]]) -> list[tuple[list[int], int]]:
    """Greedy tokens of all prompts at once, and of each how many of its tokens came from the prefix cache."""

    async def one(prompt: dict[str, Any]) -> tuple[list[int], int]:
        params = SamplingParams(max_tokens=len(prompt["output_token_ids"]), temperature=0.0, ignore_eos=True)
        events = [event async for event in client.submit(prompt["prompt_token_ids"], params)]
        return [token_id for event in events for token_id in event.token_ids], events[-1].num_cached_tokens

    return list(await asyncio.gather(*map(one, prompts)))
