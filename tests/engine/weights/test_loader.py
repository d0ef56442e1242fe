"""What becomes of the tensors of a model file in memory, whatever kind of file it is."""

from dataclasses import dataclass, field

import jax
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from engine.weights.formats.gguf_model import GGUFModel
from engine.weights.formats.safetensors_model import SafetensorsModel
from engine.weights.loader import WeightsError, WeightsFormat, num_parameters
from engine.weights.packing import TILE, Format, PackedMatrix
from tests.gguf_tensors import HIDDEN, INTERMEDIATE, NUM_LAYERS, VOCAB_SIZE, write_random_model
from tests.golden.tiny_llama import CONFIG, weights
from tests.model_folders import write_folder
from tests.packed_blocks import unpack

EXACT = WeightsFormat(is_packed=False, dtype="float32", quantize=None)


def packed(dtype="auto", quantize=None):
    return WeightsFormat(is_packed=True, dtype=dtype, quantize=quantize)


def load(path, wanted):
    return GGUFModel(path).load(wanted, lambda *step: None)


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


@pytest.mark.parametrize(
    ("wanted", "formats", "expected"),
    [
        (packed("float32"), [Format.INT4], Format.FLOAT32),
        (packed("bfloat16"), [Format.INT4, Format.BFLOAT16], Format.BFLOAT16),
        (packed(), [Format.INT4, Format.INT4], Format.INT4),
        (packed(), [Format.INT4, Format.INT4_MIN], Format.INT4_MIN),
        (packed(), [Format.INT4_MIN, Format.INT8, Format.INT4_MIN], Format.INT8_MIN),
        (packed(), [Format.INT4, Format.INT8], Format.INT8_MIN),
        (packed(), [Format.INT8, Format.INT8_MIN], Format.INT8_MIN),
        (packed(), [Format.BFLOAT16], Format.BFLOAT16),
        (packed(), [Format.BFLOAT16, Format.INT8], Format.BFLOAT16),
        (packed(quantize="int8"), [Format.BFLOAT16], Format.INT8),
        (packed(quantize="int4"), [Format.BFLOAT16], Format.INT4_MIN),
        (packed(quantize="int8"), [Format.INT4], Format.INT4),
        (packed(quantize="int8"), [Format.BFLOAT16, Format.INT8], Format.INT8),
        (packed(quantize="int8"), [Format.BFLOAT16, Format.INT4], Format.INT8_MIN),
        (packed(quantize="int4"), [Format.BFLOAT16, Format.INT8], Format.INT8_MIN),
        (packed(quantize="int4"), [Format.BFLOAT16, Format.INT4], Format.INT4_MIN),
    ],
)
def test_one_format_holds_all_tensors_of_a_leaf(wanted, formats, expected):
    assert wanted.of([Tensor(kind) for kind in formats]) is expected


@pytest.mark.parametrize(
    ("wanted", "array_dtype"),
    [
        (packed("bfloat16"), "float32"),
        (EXACT, "float32"),
        (WeightsFormat(is_packed=False, dtype="auto", quantize=None), "float32"),
        (WeightsFormat(is_packed=False, dtype="bfloat16", quantize=None), "bfloat16"),
    ],
)
def test_what_is_not_packed(wanted, array_dtype):
    assert wanted.array_dtype == array_dtype


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
    params, exact = load(path, packed()), load(path, EXACT)
    assert {name: getattr(params.layers, name).format for name in formats} == formats
    tolerance = {"rtol": 0, "atol": 2e-3 if kind_of is not mixed else 5e-3}
    for name in ("qkv", "attention_output", "down"):
        matrix = getattr(params.layers, name)
        np.testing.assert_allclose(layers_of(matrix), np.swapaxes(getattr(exact.layers, name), 1, 2), **tolerance)
    np.testing.assert_allclose(layers_of(params.layers.gate_up), alternated(exact.layers.gate_up), **tolerance)
    for name in ("embedding", "output"):
        np.testing.assert_allclose(layers_of(getattr(params, name))[0], getattr(exact, name), **tolerance)
    for name in ("attention_norm", "mlp_norm"):
        assert np.array_equal(getattr(params.layers, name), getattr(exact.layers, name))
    assert np.array_equal(params.output_norm, exact.output_norm)
    assert num_parameters(params) == num_parameters(exact)


@pytest.mark.parametrize("wanted", [EXACT, packed("float32"), packed(), packed(quantize="int4")], ids=str)
def test_parameters_are_counted_without_what_pads_them(tmp_path, wanted):
    params = load(write_random_model(tmp_path / "model.gguf", lambda name: Kind.F32), wanted)
    of_layer = HIDDEN * (HIDDEN + 2 * 128 + HIDDEN + 3 * INTERMEDIATE + 2)
    assert num_parameters(params) == 2 * VOCAB_SIZE * HIDDEN + NUM_LAYERS * of_layer + HIDDEN


def test_floats_beside_integers_are_rounded_into_the_same_leaf(tmp_path):
    """With --quantize; the integers of the file stay what they are."""

    def kind_of(name):
        return Kind.F32 if name in ("attn_v", "ffn_up") else Kind.Q4_1

    path = write_random_model(tmp_path / "model.gguf", kind_of)
    exact = load(path, EXACT)
    for quantize, step in (("int8", 1 / 127), ("int4", 1 / 15)):
        params = load(path, packed(quantize=quantize))
        assert params.layers.qkv.format is (Format.INT8_MIN if quantize == "int8" else Format.INT4_MIN)
        expected = np.swapaxes(exact.layers.qkv, 1, 2)
        error = np.abs(layers_of(params.layers.qkv) - expected)
        num_integers = HIDDEN + 128
        assert error[:, :num_integers].max() < 1e-5
        assert 0 < error[:, num_integers:].max() < step * np.ptp(expected)


def test_a_packed_tree_takes_little_more_than_the_file(tmp_path):
    path = write_random_model(tmp_path / "model.gguf", lambda name: Kind.Q4_0)
    params = load(path, packed())
    assert isinstance(params.layers.down, PackedMatrix)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(params)) < path.stat().st_size * 1.02


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_what_cannot_be_rounded_is_named(tmp_path, quantize):
    name = "model.layers.1.mlp.down_proj.weight"
    tensors = weights(CONFIG)
    tensors[name][3, 5] = np.nan
    model = SafetensorsModel(write_folder(tmp_path, tensors=tensors))
    with pytest.raises(WeightsError, match=f"{name} cannot be packed: .*not finite"):
        model.load(packed(quantize=quantize), lambda *step: None)
