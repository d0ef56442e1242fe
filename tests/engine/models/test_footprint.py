"""What a model would take is what it takes once it is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import pytest
from gguf import GGMLQuantizationType as Kind

from engine.adapters.adapter_stacks import AdapterStacks
from engine.adapters.targets import targets_of
from engine.backends.backends import choose_backends
from engine.backends.native.matrices import PackedLayout
from engine.backends.xla.matrices import ArrayLayout
from engine.client import EngineClient
from engine.interface.config import AdapterLimits, EngineConfig
from engine.interface.errors import ModelError
from engine.interface.types import ModelFootprint
from engine.models.open_model import open_model
from engine.weights.layout import Precision, WeightsLayout
from server.startup.progress import silent
from tests.gguf_tensors import HEAD_DIM, NUM_KV_HEADS, NUM_LAYERS, write_random_model
from tests.golden.pictures.tiny_folder import GOLDEN, write_tiny_folder


def mixed(name: str) -> Kind:
    """As in files called Q4_K_M: most matrices of one format, some of another."""
    return {"token_embd": Kind.Q8_0, "ffn_down": Kind.Q6_K, "output": Kind.F32}.get(name, Kind.Q4_K)


OPTIONS = [{}, {"dtype": "float32"}, {"dtype": "bfloat16"}, {"quantize": "int4"}, {"quantize": "int8"}]


@pytest.mark.parametrize(
    ("backend", "options"),
    [*(("auto", options) for options in OPTIONS), *(("xla", options) for options in OPTIONS[:3])],  # XLA rounds nothing
)
def test_the_weights_take_what_was_said(tmp_path: Path, backend: str, options: dict[str, str]) -> None:
    path = write_random_model(tmp_path / "model.gguf", mixed)
    config = EngineConfig(matmul_backend=backend, attention_backend=backend, **options)
    said = EngineClient.footprint(path, config)
    opened = open_model(path)
    loaded = opened.load(choose_backends(config, opened.config).weights, Precision.of_engine(config), silent)
    assert said.weight_bytes == sum(array.nbytes for array in jax.tree.leaves(loaded.params))
    assert said.num_parameters == loaded.num_parameters
    assert said.architecture == "llama"
    assert said.context_length == 512


@pytest.mark.parametrize(
    ("dtype", "layout"), [("float32", ArrayLayout()), ("float32", PackedLayout()), ("auto", PackedLayout())]
)
def test_adapters_take_the_memory_of_their_places(tmp_path: Path, dtype: str, layout: WeightsLayout) -> None:
    """Where all weights of a leaf have few bits, bytes and their scales."""
    path = write_random_model(tmp_path / "model.gguf", mixed if dtype == "float32" else lambda _: Kind.Q8_0)
    backend = "native" if isinstance(layout, PackedLayout) else "xla"
    config = EngineConfig(dtype=dtype, matmul_backend=backend, attention_backend=backend)
    limits = AdapterLimits(3, 12)
    alone = EngineClient.footprint(path, config)
    said = EngineClient.footprint(path, replace(config, adapters=limits))
    opened = open_model(path)
    targets = targets_of(opened.model)
    stacks = AdapterStacks(targets, limits, layout, Precision.of_engine(config), (), tensors=opened.tensors)
    attached = stacks.attach({target.name: None for target in targets})
    pairs = [leaf.pairs for leaf in attached.values()]
    assert {pair.down.dtype.name for pair in pairs} == {"float32" if dtype == "float32" else "uint8"}
    assert said.weight_bytes - alone.weight_bytes == sum(pair.down.nbytes + pair.up.nbytes for pair in pairs) > 0


@pytest.mark.parametrize(("dtype", "num_bytes"), [("float32", 4 * HEAD_DIM), ("int8", HEAD_DIM + 4)])
def test_the_cache_of_a_token(tmp_path: Path, dtype: str, num_bytes: int) -> None:
    path = write_random_model(tmp_path / "model.gguf", mixed)
    said = EngineClient.footprint(path, EngineConfig(kv_cache_dtype=dtype))
    assert said.kv_bytes_per_token == NUM_LAYERS * NUM_KV_HEADS * 2 * num_bytes


def test_a_damaged_model_has_none(tmp_path: Path) -> None:
    path = write_random_model(tmp_path / "model.gguf", mixed)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ModelError, match="cut short"):
        EngineClient.footprint(path, EngineConfig())


def test_the_memory_of_this_machine() -> None:
    memory = EngineClient.machine_memory()
    assert 0 < memory.usable < memory.available <= memory.total


def test_the_encoder_of_pictures_is_a_part_of_the_weights(tmp_path: Path) -> None:
    path = write_tiny_folder(tmp_path)
    seeing, blind = (EngineClient.footprint(path, EngineConfig(language_model_only=only)) for only in (False, True))
    assert seeing.encoder_bytes == seeing.weight_bytes - blind.weight_bytes > 0
    assert seeing.image_tokens == GOLDEN["config"]["mm_tokens_per_image"]
    assert (blind.encoder_bytes, blind.image_tokens) == (0, 0)


def test_layers_with_a_window_take_no_more_than_it_holds():
    said = ModelFootprint("any", 1, 100_000, 1, 18, window_bytes_per_token=15, window_tokens=1_000)
    assert [said.kv_bytes(num_tokens) for num_tokens in (10, 1_000, 32_000)] == [180, 18_000, 32_000 * 3 + 15_000]
