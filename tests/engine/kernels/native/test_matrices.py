"""What becomes of the tensors of a model file in packed matrices, whatever kind of file it is."""

from dataclasses import dataclass, field

import jax
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from engine.border.errors import ModelError
from engine.kernels.native.matrices import PackedLayout, packed_format
from engine.kernels.xla.matrices import ArrayLayout
from engine.models.open_model import open_model
from engine.weights.layout import Precision
from engine.weights.packing import TILE, Format, PackedMatrix
from tests.gguf_tensors import HIDDEN, write_random_model
from tests.golden.tiny_llama import CONFIG, weights
from tests.model_folders import write_folder
from tests.packed_blocks import unpack


def load(path, dtype="auto", quantize=None):
    """The parameters as packed matrices."""
    return open_model(path).load(PackedLayout(), Precision(dtype, quantize), lambda *step: None).params


def load_exact(path):
    """The parameters as arrays."""
    return open_model(path).load(ArrayLayout(), Precision("float32", None), lambda *step: None).params


def mixed(name):
    """As files of the mixture Q4_K_M are: some matrices of a finer format than the others of the same leaf."""
    return {"attn_v": Kind.Q6_K, "ffn_down": Kind.Q6_K, "token_embd": Kind.Q8_0}.get(name, Kind.Q4_K)


def layers_of(matrix):
    """float32[num_layers, outputs, inputs] of a packed matrix."""
    blocks = np.asarray(matrix.blocks)
    return np.stack([unpack(layer, matrix.format)[: matrix.num_outputs] for layer in blocks])


def alternated(gate_up):
    """[num_layers, inputs, outputs] of an array tree, as the packed tiles of a gated product lie."""
    gate, up = np.split(np.swapaxes(gate_up, 1, 2), 2, axis=1)
    tiles = [part.reshape(len(part), -1, TILE, part.shape[2]) for part in (gate, up)]
    return np.stack(tiles, axis=2).reshape(len(gate), -1, gate.shape[2])


@dataclass(frozen=True)
class Tensor:
    """As far as a format is chosen by it."""

    format: Format
    name: str = "t"
    shape: tuple[int, ...] = (16, 32)
    num_bytes: int = 0
    quantised: None = field(default=None)
    float32: None = field(default=None)


def precision(dtype="auto", quantize=None):
    return Precision(dtype, quantize)


@pytest.mark.parametrize(
    ("wanted", "formats", "expected"),
    [
        (precision("float32"), [Format.INT4], Format.FLOAT32),
        (precision("bfloat16"), [Format.INT4, Format.BFLOAT16], Format.BFLOAT16),
        (precision(), [Format.INT4, Format.INT4], Format.INT4),
        (precision(), [Format.INT4, Format.INT4_MIN], Format.INT4_MIN),
        (precision(), [Format.INT4_MIN, Format.INT8, Format.INT4_MIN], Format.INT8_MIN),
        (precision(), [Format.INT4, Format.INT8], Format.INT8_MIN),
        (precision(), [Format.INT8, Format.INT8_MIN], Format.INT8_MIN),
        (precision(), [Format.BFLOAT16], Format.BFLOAT16),
        (precision(), [Format.BFLOAT16, Format.INT8], Format.BFLOAT16),
        (precision(quantize="int8"), [Format.BFLOAT16], Format.INT8),
        (precision(quantize="int4"), [Format.BFLOAT16], Format.INT4_MIN),
        (precision(quantize="int8"), [Format.INT4], Format.INT4),
        (precision(quantize="int8"), [Format.BFLOAT16, Format.INT8], Format.INT8),
        (precision(quantize="int8"), [Format.BFLOAT16, Format.INT4], Format.INT8_MIN),
        (precision(quantize="int4"), [Format.BFLOAT16, Format.INT8], Format.INT8_MIN),
        (precision(quantize="int4"), [Format.BFLOAT16, Format.INT4], Format.INT4_MIN),
    ],
)
def test_one_format_holds_all_tensors_of_a_leaf(wanted, formats, expected):
    assert packed_format([Tensor(kind) for kind in formats], wanted) is expected


@pytest.mark.parametrize(
    ("kind_of", "formats"),
    [
        (lambda name: Kind.Q4_0, {"qkv": Format.INT4, "down": Format.INT4}),
        (mixed, {"qkv": Format.INT8_MIN, "down": Format.INT8, "gate_up": Format.INT4_MIN}),
        (lambda name: Kind.F32, {"qkv": Format.BFLOAT16, "down": Format.BFLOAT16}),
    ],
)
def test_a_packed_tree_holds_what_the_file_holds(tmp_path, kind_of, formats):
    path = write_random_model(tmp_path / "model.gguf", kind_of)
    params, exact = load(path), load_exact(path)
    assert {name: params[name].format for name in formats} == formats
    tolerance = {"rtol": 0, "atol": 2e-3 if kind_of is not mixed else 5e-3}
    for name in ("qkv", "attention_output", "down"):
        matrix = params[name]
        np.testing.assert_allclose(layers_of(matrix), np.swapaxes(exact[name], 1, 2), **tolerance)
    np.testing.assert_allclose(layers_of(params["gate_up"]), alternated(exact["gate_up"]), **tolerance)
    for name in ("embedding", "output"):
        np.testing.assert_allclose(layers_of(params[name])[0], exact[name], **tolerance)
    for name in ("attention_norm", "mlp_norm"):
        assert np.array_equal(params[name], exact[name])
    assert np.array_equal(params["output_norm"], exact["output_norm"])


def test_floats_beside_integers_are_rounded_into_the_same_leaf(tmp_path):
    """With --quantize; the integers of the file stay what they are."""

    def kind_of(name):
        return Kind.F32 if name in ("attn_v", "ffn_up") else Kind.Q4_1

    path = write_random_model(tmp_path / "model.gguf", kind_of)
    exact = load_exact(path)
    for quantize, step in (("int8", 1 / 127), ("int4", 1 / 15)):
        params = load(path, quantize=quantize)
        assert params["qkv"].format is (Format.INT8_MIN if quantize == "int8" else Format.INT4_MIN)
        expected = np.swapaxes(exact["qkv"], 1, 2)
        error = np.abs(layers_of(params["qkv"]) - expected)
        num_integers = HIDDEN + 128
        assert error[:, :num_integers].max() < 1e-5
        assert 0 < error[:, num_integers:].max() < step * np.ptp(expected)


def test_a_packed_tree_takes_little_more_than_the_file(tmp_path):
    path = write_random_model(tmp_path / "model.gguf", lambda name: Kind.Q4_0)
    params = load(path)
    assert isinstance(params["down"], PackedMatrix)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(params)) < path.stat().st_size * 1.02


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_what_cannot_be_rounded_is_named(tmp_path, quantize):
    name = "model.layers.1.mlp.down_proj.weight"
    tensors = weights(CONFIG)
    tensors[name][3, 5] = np.nan
    path = write_folder(tmp_path, tensors=tensors)
    with pytest.raises(ModelError, match=f"{name} cannot be packed: .*not finite"):
        load(path, quantize=quantize)
