"""Jina Embeddings 2 against its definition in plain numpy: transformers has no class of it."""

from __future__ import annotations

import json
from math import erf
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import MODEL_ARCH, GGUFWriter
from safetensors.numpy import save_file

from engine.interface.errors import ModelError
from engine.interface.types import Pooling
from engine.models.open_model import open_model
from engine.models.parts.alibi import distance_slopes
from tests.engine.models.test_encoders import assert_same_weights, embed_all, engine_of
from tests.golden.architectures.tiny_weights import tiny_weights

HIDDEN, INNER, HEADS, LAYERS, VOCAB = 96, 64, 3, 2, 64
CONFIG = {
    "architectures": ["JinaBertForMaskedLM"], "model_type": "bert", "vocab_size": VOCAB, "hidden_size": HIDDEN,
    "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "max_position_embeddings": 256, "position_embedding_type": "alibi", "feed_forward_type": "geglu",
    "hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2,
}  # fmt: skip
LENGTHS = (2, 17, 70)


def weights() -> dict[str, np.ndarray]:
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (VOCAB, HIDDEN), "embeddings.token_type_embeddings.weight": (2, HIDDEN),
        "embeddings.LayerNorm.weight": (HIDDEN,), "embeddings.LayerNorm.bias": (HIDDEN,),
    }  # fmt: skip
    for layer in range(LAYERS):
        prefix = f"encoder.layer.{layer}."
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            shapes |= {f"{prefix}{name}.weight": (HIDDEN, HIDDEN), f"{prefix}{name}.bias": (HIDDEN,)}
        for name in ("attention.output.LayerNorm", "mlp.layernorm"):
            shapes |= {f"{prefix}{name}.weight": (HIDDEN,), f"{prefix}{name}.bias": (HIDDEN,)}
        shapes |= {
            f"{prefix}mlp.gated_layers.weight": (2 * INNER, HIDDEN), f"{prefix}mlp.wo.weight": (HIDDEN, INNER),
            f"{prefix}mlp.wo.bias": (HIDDEN,),
        }  # fmt: skip
    return tiny_weights("JinaBertForMaskedLM", shapes, 4)


def expected(token_ids: list[int]) -> np.ndarray:
    """The states of all tokens, by the definition."""
    tensors = weights()

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        product: np.ndarray = x @ tensors[f"{name}.weight"].T + tensors.get(f"{name}.bias", 0)
        return product

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(axis=1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-12)
        normed: np.ndarray = scaled * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]
        return normed

    words = tensors["embeddings.word_embeddings.weight"][token_ids].astype(np.float64)
    x = norm(words + tensors["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    places = np.arange(len(token_ids))
    distances = np.abs(places[:, None] - places)
    slopes = (1 / 16, 1 / 256, 1 / 4)  # of three heads
    for layer in range(LAYERS):
        prefix = f"encoder.layer.{layer}."
        q, k, v = (
            linear(x, f"{prefix}attention.self.{name}").reshape(len(x), HEADS, -1) for name in ("query", "key", "value")
        )
        mixed = []
        for head, slope in enumerate(slopes):
            scores = q[:, head] @ k[:, head].T / np.sqrt(HIDDEN // HEADS) - slope * distances
            powers = np.exp(scores - scores.max(axis=1, keepdims=True))
            mixed.append(powers / powers.sum(axis=1, keepdims=True) @ v[:, head])
        attended = linear(np.concatenate(mixed, axis=1), f"{prefix}attention.output.dense")
        x = norm(x + attended, f"{prefix}attention.output.LayerNorm")
        gates, ups = np.split(linear(x, f"{prefix}mlp.gated_layers"), 2, axis=1)
        inner = gates * (1 + np.vectorize(erf)(gates / np.sqrt(2))) / 2 * ups
        x = norm(x + linear(inner, f"{prefix}mlp.wo"), f"{prefix}mlp.layernorm")
    return x


def write_gguf(path: Path, *, are_gates_apart: bool) -> Path:
    writer = GGUFWriter(path, "jina-bert-v2")
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_block_count(LAYERS)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    names = gguf.get_tensor_name_map(MODEL_ARCH.JINA_BERT_V2, LAYERS)
    for name, values in weights().items():
        halves = np.split(values, 2) if "gated_layers" in name and are_gates_apart else [values]
        suffixes = ("gated_layers_w", "gated_layers_v") if len(halves) == 2 else ("gated_layers",)
        for suffix, half in zip(suffixes, halves, strict=True):
            stored = names.get_name(name.replace("gated_layers", suffix), try_suffixes=(".weight", ".bias"))
            assert stored is not None, name
            writer.add_tensor(stored, np.ascontiguousarray(half))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_folder(path: Path, **changes: Any) -> Path:
    (path / "config.json").write_text(json.dumps(CONFIG | changes), encoding="utf-8")
    head = {"cls.predictions.bias": np.zeros(VOCAB, np.float32)}
    save_file(weights() | head, path / "model.safetensors")
    return path


@pytest.mark.parametrize("backend", ["xla", "native"])
async def test_states(tmp_path: Path, backend: str, request: pytest.FixtureRequest) -> None:
    if backend == "native":
        request.getfixturevalue("native")
    path = write_folder(tmp_path)
    texts = [{"token_ids": [(7 * length + index * index) % VOCAB for index in range(length)]} for length in LENGTHS]
    async with engine_of(path, backend, max_model_len=128, max_num_seqs=1) as client:
        got = await embed_all(client, [{**text, "second_start": 0} for text in texts], Pooling.MEAN)
    for text, vector in zip(texts, got, strict=True):
        np.testing.assert_allclose(vector, expected(text["token_ids"]).mean(axis=0), rtol=0, atol=2e-5)


@pytest.mark.parametrize("are_gates_apart", [False, True])
def test_a_gguf_file_is_the_same_model(tmp_path: Path, are_gates_apart: bool) -> None:
    """Whether its gates are joined with what they multiply, as llama.cpp's converter leaves them, or apart."""
    gguf_file = write_gguf(tmp_path / "model.gguf", are_gates_apart=are_gates_apart)
    opened = [open_model(path) for path in (write_folder(tmp_path), gguf_file)]
    assert opened[0].model == opened[1].model
    assert_same_weights(*opened)


def test_slopes_of_heads() -> None:
    assert distance_slopes(4) == (2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8)
    assert distance_slopes(6)[4:] == (2.0**-1, 2.0**-3)


@pytest.mark.parametrize("field", ["position_embedding_type", "feed_forward_type"])
def test_what_is_refused(tmp_path: Path, field: str) -> None:
    with pytest.raises(ModelError, match=field):
        open_model(write_folder(tmp_path, **{field: "absolute"}))
