"""Leaves of experts: from files that hold one tensor for each, or one for all, into one stack."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter
from gguf.quants import dequantize, quantize
from safetensors.numpy import save_file

from engine.backends.native.matrices import PackedLayout
from engine.backends.xla.matrices import ArrayLayout
from engine.interface.errors import ModelError
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import ModelFolder
from engine.weights.formats.safetensors_files import SafetensorsFiles
from engine.weights.layout import Precision
from engine.weights.leaf import Leaf, LeafKind, Part, Stored
from engine.weights.loader import LeafTensors, load_weights
from tests.packed_blocks import unpack_layers

NUM_LAYERS, NUM_EXPERTS, OUTPUTS, INPUTS = 2, 3, 16, 32
SHAPE = (OUTPUTS, INPUTS)
WEIGHTS = np.random.default_rng(0).standard_normal((NUM_LAYERS, NUM_EXPERTS, *SHAPE)).astype(np.float32)
EACH = "layers.{layer}.experts.{expert}.down"
ALL = "blk.{layer}.down_exps"


def leaf(name, num_experts=NUM_EXPERTS):
    stored = {"safetensors": Stored(name), "gguf": Stored(name)}
    return Leaf("down", LeafKind.MATRIX, (Part(SHAPE, stored),), num_experts=num_experts)


def gguf(path, kind):
    writer = GGUFWriter(path, "llama")
    for layer, experts in enumerate(WEIGHTS):
        raw = kind is not Kind.F32
        writer.add_tensor(
            ALL.format(layer=layer), quantize(experts, kind) if raw else experts, raw_dtype=kind if raw else None
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFTensors(path)


def folder(path, name):
    path.mkdir()
    (path / "config.json").write_text("{}", encoding="utf-8")
    tensors = {}
    for layer, experts in enumerate(WEIGHTS):
        if "{expert}" in name:
            tensors |= {name.format(layer=layer, expert=number): weights for number, weights in enumerate(experts)}
        else:
            tensors[name.format(layer=layer)] = experts
    save_file(tensors, path / "model.safetensors")
    return SafetensorsFiles(ModelFolder(path))


def load(tensors, layout, told=lambda *step: None):
    return load_weights(tensors, layout, Precision("auto", None), told)


@pytest.mark.parametrize("name", [EACH, ALL])
def test_a_folder_names_each_expert_or_all_at_once(tmp_path, name):
    file = folder(tmp_path / "model", name)
    tensors = LeafTensors([leaf(name)], NUM_LAYERS, file, file.format)
    assert tensors.shapes().keys() == file.names
    assert set(tensors.shapes().values()) == {SHAPE if name is EACH else (NUM_EXPERTS, *SHAPE)}
    told = []
    weights = load(tensors, ArrayLayout(), lambda *step: told.append(step))
    expected = WEIGHTS.reshape(-1, *SHAPE).swapaxes(1, 2)
    np.testing.assert_array_equal(weights.params["down"], expected)
    assert weights.num_parameters == WEIGHTS.size
    assert told[-1][1] == told[-1][2] == WEIGHTS.nbytes


@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q8_0])
def test_a_gguf_tensor_of_all_experts_is_read_expert_by_expert(tmp_path, kind):
    file = gguf(tmp_path / "model.gguf", kind)
    tensors = LeafTensors([leaf(ALL)], NUM_LAYERS, file, file.format)
    of_leaf = tensors.of(tensors.leaves[0])
    assert [len(parts) for parts in of_leaf] == [1] * NUM_LAYERS * NUM_EXPERTS
    assert {parts[0].shape for parts in of_leaf} == {SHAPE}
    expected = WEIGHTS if kind is Kind.F32 else dequantize(quantize(WEIGHTS, kind), kind)
    expected = expected.reshape(-1, *SHAPE)
    assert sum(parts[0].num_bytes for parts in of_leaf) == expected.size * (4 if kind is Kind.F32 else 34 / 32)
    np.testing.assert_array_equal(load(tensors, ArrayLayout()).params["down"], expected.swapaxes(1, 2))
    if kind is Kind.Q8_0:
        packed = load(tensors, PackedLayout()).params["down"]
        np.testing.assert_array_equal(unpack_layers(packed), expected)


def test_another_number_of_experts_is_refused(tmp_path):
    file = gguf(tmp_path / "model.gguf", Kind.F32)
    tensors = LeafTensors([leaf(ALL, NUM_EXPERTS - 1)], NUM_LAYERS, file, file.format)
    with pytest.raises(ModelError, match=r"blk.0.down_exps has shape \(3, 16, 32\), expected \(2, 16, 32\)"):
        tensors.of(tensors.leaves[0])


@pytest.mark.parametrize("layout", [ArrayLayout(), PackedLayout()])
def test_a_router_stays_exact_whatever_the_precision(tmp_path, layout):
    file = folder(tmp_path / "model", EACH)
    exact = replace(leaf(EACH), name="router", is_exact=True)
    tensors = LeafTensors([leaf(EACH), exact], NUM_LAYERS, file, file.format)
    weights = load_weights(tensors, layout, Precision("bfloat16", None), lambda *step: None)
    assert weights.dtype == "bfloat16"
    sizes = {name: sum(array.nbytes for array in jax.tree.leaves(made)) for name, made in weights.params.items()}
    assert sizes == {"down": 2 * WEIGHTS.size, "router": 4 * WEIGHTS.size}
