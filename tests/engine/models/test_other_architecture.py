"""An architecture that differs from those that are served in every way it can, and that lives in this file alone.

LayerNorm with bias, attention and feed-forward side by side, a sliding window and another rotary
base in every second layer, a rotation of half a head, GELU without a gate, biases on all products, a
fused matrix of queries, keys and values. A row of the registry makes it served, by each backend, with
prompts in chunks, a prefix cache and preemption. Its witness is a plain numpy forward pass.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGUFWriter
from safetensors.numpy import save_file

from cache.storage import KVPages
from engine.backends.base.backend import Backend, Backends
from engine.backends.base.model_config import ModelConfig
from engine.backends.base.operands import Activation, AttentionConstants, Norm, NormKind
from engine.backends.base.token_layout import TokenLayout
from engine.backends.xla.matrices import ArrayLayout
from engine.client import EngineClient
from engine.engine import Engine
from engine.interface.config import TILE_SIZE, EngineConfig
from engine.models import registry
from engine.models.open_model import open_model
from engine.models.parts.model import Carry, Model, normed, run_layers
from engine.models.parts.rotary import rotary_frequencies, rotations
from engine.models.registry import Architecture
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params, Precision
from engine.weights.leaf import Leaf, LeafKind, Part, Split, Stored
from sampling.host.params import SamplingParams
from tests.forward_steps import QUICK_TO_COMPILE, ForwardSteps
from tests.thoroughness import IS_FULL

EPSILON = 1e-5
BASES = (10000.0, 100.0)  # of layers that see all, and of those with a window
CONFIG = {
    "architectures": ["ContrastForCausalLM"],
    "n_vocab": 101, "n_embd": 64, "n_inner": 96, "n_layer": 4, "n_head": 4, "n_head_kv": 2, "n_positions": 256,
    "window": 40,
}  # fmt: skip

# ------------------------------------------------------------------------------------ the architecture


@dataclass(frozen=True)
class ContrastConfig(ModelConfig):
    """The usual sizes, and the window of every second layer in tokens."""

    window: int


@dataclass(frozen=True)
class Contrast(Model):
    """x + attention(norm(x)) + feed_forward(norm(x))."""

    config: ContrastConfig

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        return cls._of(lambda key: config.required_integer(key, least=1))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls._of(lambda key: file.fields.required_integer(key, least=1))

    @classmethod
    def _of(cls, size: Any) -> Self:
        return cls(
            ContrastConfig(
                vocab_size=size("n_vocab"), hidden_size=size("n_embd"), intermediate_size=size("n_inner"),
                num_layers=size("n_layer"), num_heads=size("n_head"), num_kv_heads=size("n_head_kv"),
                head_dim=size("n_embd") // size("n_head"), context_length=size("n_positions"), window=size("window"),
            )
        )  # fmt: skip

    def leaves(self) -> tuple[Leaf, ...]:
        config, vector, matrix = self.config, LeafKind.VECTOR, LeafKind.MATRIX
        hidden, inner, qkv = config.hidden_size, config.intermediate_size, config.q_size + 2 * config.kv_size
        vocab = config.vocab_size, hidden

        def of_layers(name: str, kind: LeafKind, shape: tuple[int, ...], split: Split = Split.REPLICATED) -> Leaf:
            stored = {"safetensors": Stored(f"h.{{layer}}.{name}"), "gguf": Stored(f"blk.{{layer}}.{name}")}
            return Leaf(name, kind, (Part(shape, stored),), split)

        def single(name: str, kind: LeafKind, shape: tuple[int, ...], split: Split = Split.REPLICATED) -> Leaf:
            stored = {"safetensors": Stored(name), "gguf": Stored(name)}
            return Leaf(name, kind, (Part(shape, stored),), split, is_per_layer=False)

        return (
            single("embedding", LeafKind.EMBEDDING, vocab, Split.OUTPUTS),
            of_layers("norm", vector, (hidden,)),
            of_layers("norm_bias", vector, (hidden,)),
            of_layers("qkv", matrix, (qkv, hidden), Split.HEADS),
            of_layers("qkv_bias", vector, (qkv,), Split.HEADS),
            of_layers("attended", matrix, (hidden, config.q_size), Split.INPUTS),
            of_layers("attended_bias", vector, (hidden,)),
            of_layers("up", matrix, (inner, hidden), Split.OUTPUTS),
            of_layers("up_bias", vector, (inner,), Split.OUTPUTS),
            of_layers("down", matrix, (hidden, inner), Split.INPUTS),
            of_layers("down_bias", vector, (hidden,)),
            single("output_norm", vector, (hidden,)),
            single("output_norm_bias", vector, (hidden,)),
            single("output", LeafKind.EMBEDDING, vocab, Split.OUTPUTS),
            single("output_bias", vector, (config.vocab_size,), Split.OUTPUTS),
        )

    def forward(
        self, params: Params, tokens: jax.Array, kv: KVPages, layout: TokenLayout, backends: Backends
    ) -> tuple[jax.Array, KVPages]:
        config, products = self.config, backends.products
        norm = Norm(params["norm"], EPSILON, NormKind.LAYER, params["norm_bias"])
        is_local = np.arange(config.num_layers) % 2
        constants = AttentionConstants(
            num_heads=config.num_heads,
            scale=config.head_dim**-0.5,
            rotations=rotations(
                layout.positions, *(rotary_frequencies(config.head_dim // 2, base) for base in BASES)
            ),
            tables=is_local.astype(np.int32),
            windows=(is_local * config.window).astype(np.int32),
        )  # fmt: skip

        def layer(index: jax.Array, carry: Carry) -> Carry:
            x, kv = carry
            qkv = products.norm_product(x, norm, params["qkv"], index, layout, bias=params["qkv_bias"])
            attended, kv = backends.attention(qkv, kv, index, layout, constants)
            mixed = products.norm_product(
                x, norm, params["up"], index, layout, bias=params["up_bias"], activation=Activation.GELU_TANH
            )
            x = products.add_product(x, attended, params["attended"], index, layout, bias=params["attended_bias"])
            return products.add_product(x, mixed, params["down"], index, layout, bias=params["down_bias"]), kv

        return run_layers(layer, config.num_layers, products.embed(params["embedding"], tokens, layout), kv)

    def logits(self, params: Params, hidden: jax.Array, sampled: jax.Array, backends: Backends) -> jax.Array:
        norm = Norm(params["output_norm"], EPSILON, NormKind.LAYER, params["output_norm_bias"])
        return backends.products.head_product(hidden, sampled, norm, params["output"], bias=params["output_bias"])

    def states(self, params: Params, hidden: jax.Array, tokens: jax.Array, backends: Backends) -> jax.Array:
        norm = Norm(params["output_norm"], EPSILON, NormKind.LAYER, params["output_norm_bias"])
        return normed(hidden[tokens], norm, jnp.int32(0))


# ------------------------------------------------------------------------------------ its plain reference


def tensors() -> dict[str, np.ndarray]:
    """Random weights by their names in a folder."""
    random = np.random.default_rng(0)
    hidden, inner, vocab, head_dim = CONFIG["n_embd"], CONFIG["n_inner"], CONFIG["n_vocab"], 16
    of_layer = {
        "norm": (hidden,), "norm_bias": (hidden,), "up": (inner, hidden), "up_bias": (inner,),
        "down": (hidden, inner), "down_bias": (hidden,), "attended": (hidden, hidden), "attended_bias": (hidden,),
        "qkv": (hidden + 2 * 2 * head_dim, hidden), "qkv_bias": (hidden + 2 * 2 * head_dim,),
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "embedding": (vocab, hidden), "output": (vocab, hidden), "output_bias": (vocab,),
        "output_norm": (hidden,), "output_norm_bias": (hidden,),
    }  # fmt: skip
    for layer in range(CONFIG["n_layer"]):
        shapes |= {f"h.{layer}.{name}": shape for name, shape in of_layer.items()}
    return {
        name: (random.standard_normal(shape) * (shape[-1] ** -0.5 if len(shape) == 2 else 0.3)).astype(np.float32)
        for name, shape in shapes.items()
    }


WEIGHTS = {name: values.astype(np.float64) for name, values in tensors().items()}


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    normed: np.ndarray = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON) * weight + bias
    return normed


def gelu(x: np.ndarray) -> np.ndarray:
    curve: np.ndarray = x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return curve


def attention(qkv: np.ndarray, base: float, window: int) -> np.ndarray:
    """[length, hidden]; four heads of 16 features over two of keys, the first 8 features rotated."""
    length = len(qkv)
    q, k, v = np.split(qkv.reshape(length, 8, 16), [4, 6], axis=1)
    positions = np.arange(length)
    angles = positions[:, None] * base ** (-np.arange(0, 8, 2) / 8)

    def rotated(x: np.ndarray) -> np.ndarray:
        turned = (x[..., :4] + 1j * x[..., 4:8]) * np.exp(1j * angles)[:, None]
        return np.concatenate([turned.real, turned.imag, x[..., 8:]], axis=-1)

    q, k, v = rotated(q), np.repeat(rotated(k), 2, axis=1), np.repeat(v, 2, axis=1)
    distance = positions[:, None] - positions
    scores = np.where((distance >= 0) & (distance < window), np.einsum("qhd,khd->hqk", q, k) / 4, -np.inf)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed: np.ndarray = np.einsum("hqk,khd->qhd", shares / shares.sum(axis=-1, keepdims=True), v)
    return mixed.reshape(length, -1)


def reference(token_ids: list[int]) -> np.ndarray:
    """Logits of every token, float64[length, vocab]."""
    x = WEIGHTS["embedding"][token_ids]
    for layer in range(CONFIG["n_layer"]):
        w = {name.split(".")[2]: values for name, values in WEIGHTS.items() if name.startswith(f"h.{layer}.")}
        normed = layer_norm(x, w["norm"], w["norm_bias"])
        base, window = (BASES[1], CONFIG["window"]) if layer % 2 else (BASES[0], len(x))
        attended = attention(normed @ w["qkv"].T + w["qkv_bias"], base, window)
        mixed = gelu(normed @ w["up"].T + w["up_bias"])
        x = x + attended @ w["attended"].T + w["attended_bias"] + mixed @ w["down"].T + w["down_bias"]
    normed = layer_norm(x, WEIGHTS["output_norm"], WEIGHTS["output_norm_bias"])
    logits: np.ndarray = normed @ WEIGHTS["output"].T + WEIGHTS["output_bias"]
    return logits


def best_tokens(prompt: list[int], chosen: list[int]) -> list[int]:
    """The best after the prompt and after each of the chosen tokens but the last, none of which is a near-tie.

    They are the chosen ones where those are greedy: one pass tells what a pass for each token would.
    """
    logits = reference([*prompt, *chosen[:-1]])[len(prompt) - 1 :]
    second, best = np.sort(logits, axis=-1)[:, -2:].T
    assert (best - second > 1e-4).all()
    best_ids: list[int] = logits.argmax(axis=-1).tolist()
    return best_ids


# ------------------------------------------------------------------------------------ served


class Row(Architecture):
    """A row whose class lies in this file."""

    @property
    def model(self) -> type[Model]:
        return Contrast


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    row = Row("contrast", "ContrastForCausalLM", "Contrast")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "ARCHITECTURES", (*registry.ARCHITECTURES, row))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("contrast")
    (path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    save_file(tensors(), path / "model.safetensors")
    return path


def configuration(backend: Backend) -> EngineConfig:
    """Of 22 pages for requests, and few shapes to compile."""
    return EngineConfig(
        dtype="float32", matmul_backend=backend.name, attention_backend=backend.name,
        max_num_seqs=2, max_num_batched_tokens=2 + TILE_SIZE, num_pages=23, page_size=16,
    )  # fmt: skip


def prompts(*lengths: int) -> list[list[int]]:
    random = np.random.default_rng(1)
    return [random.integers(0, CONFIG["n_vocab"], length).tolist() for length in lengths]


@pytest.mark.parametrize("chunk", [32, 100])
def test_logits_equal_the_reference(folder: Path, backend: Backend, chunk: int) -> None:
    """Of prompt chunks and decode rows side by side."""
    if backend.name == "xla" and chunk == 100 and not IS_FULL:
        pytest.skip("XLA's chunks of 32 are compared; EAGRE_FULL=1 compiles it for chunks of 100 too")
    steps = ForwardSteps.load(folder, configuration(backend), QUICK_TO_COMPILE)
    sequences = prompts(5, 150, 90)
    got = steps.logits(sequences, num_decoded=3, chunk=chunk)
    expected = np.array([reference(sequence)[-4:] for sequence in sequences])
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)


async def outputs(client: EngineClient, jobs: list[list[int]], num_tokens: int) -> list[tuple[list[int], int]]:
    """Greedy tokens of all prompts at once, and of each prompt how many tokens came from the prefix cache."""
    params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)

    async def one(prompt: list[int]) -> tuple[list[int], int]:
        events = [event async for event in client.submit(prompt, params)]
        return [token_id for event in events for token_id in event.token_ids], events[-1].num_cached_tokens

    return list(await asyncio.gather(*map(one, jobs)))


@pytest.fixture(scope="module")
def engine(folder: Path, backend: Backend) -> Engine:
    if backend.name == "xla" and not IS_FULL:
        pytest.skip("its logits are compared above; EAGRE_FULL=1 compiles an engine's programs too")
    return Engine.load(folder, configuration(backend), lambda stage, done, total: None)


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[EngineClient]:
    """A client of an engine that remembers nothing."""
    assert engine.pool.reset_prefix_cache()
    client = EngineClient(engine)
    client.start(asyncio.get_running_loop())
    yield client
    stats = client.stats()
    client.shutdown()
    engine.pool.check()
    assert stats.compiles_after_ready == 0


def test_the_engine_tells_what_it_serves(engine: Engine, backend: Backend) -> None:
    info = engine.model_info
    assert (info.architecture, info.vocab_size, info.dtype) == ("contrast", CONFIG["n_vocab"], "float32")
    assert (info.matmul_backend, info.attention_backend) == (backend.name, backend.name)
    assert info.num_parameters == sum(values.size for values in WEIGHTS.values())


async def test_prompts_in_chunks_beside_decode_rows_and_from_the_prefix_cache(client: EngineClient) -> None:
    jobs = prompts(3, 100, 50)
    cold = await outputs(client, jobs, 20)
    assert [len(token_ids) for token_ids, _ in cold] == [20] * 3
    expected = [best_tokens(prompt, token_ids) for prompt, (token_ids, _) in zip(jobs, cold, strict=True)]
    assert [token_ids for token_ids, _ in cold] == expected
    warm = await outputs(client, jobs, 20)
    assert [token_ids for token_ids, _ in warm] == expected
    assert [num_cached for _, num_cached in warm] == [0, 96, 48]


async def test_preempted_requests_give_the_same_tokens(client: EngineClient) -> None:
    jobs = prompts(150, 155)  # each of which needs 12 pages at its end
    before = client.stats().num_preemptions
    got = [token_ids for token_ids, _ in await outputs(client, jobs, 32)]
    assert [len(token_ids) for token_ids in got] == [32] * 2
    assert got == [best_tokens(prompt, token_ids) for prompt, token_ids in zip(jobs, got, strict=True)]
    assert client.stats().num_preemptions > before


def test_a_gguf_file_holds_the_same_model(folder: Path, tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "contrast.gguf", "contrast")
    for key, value in CONFIG.items():
        if isinstance(value, int):
            writer.add_uint32(f"contrast.{key}", value)
    for name, values in tensors().items():
        writer.add_tensor(name.replace("h.", "blk.", 1) if name.startswith("h.") else name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    first, second = open_model(folder), open_model(tmp_path / "contrast.gguf")
    assert (first.model, first.architecture) == (second.model, second.architecture)
    loaded = [
        opened.load(ArrayLayout(), Precision("float32", None), lambda *step: None).params for opened in (first, second)
    ]
    assert loaded[0].keys() == loaded[1].keys()
    assert all(np.array_equal(values, loaded[1][name]) for name, values in loaded[0].items())
