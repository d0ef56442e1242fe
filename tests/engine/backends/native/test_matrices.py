"""What becomes of the tensors of a model file in packed matrices, whatever kind of file it is."""

from dataclasses import dataclass, field

import jax
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from engine.backends.native.matrices import PackedLayout, packed_format
from engine.backends.xla.matrices import ArrayLayout
from engine.interface.errors import ModelError
from engine.models.open_model import open_model
from engine.weights.layout import Precision
from engine.weights.packing import Format, PackedMatrix
from engine.weights.spread_heads import spread_outputs
from tests.gguf_tensors import HIDDEN, write_random_model
from tests.golden.tiny_llama import CONFIG, weights
from tests.model_folders import write_folder
from tests.packed_blocks import unpack_layers


def load(path, dtype="auto", quantize=None):
    """The parameters as packed matrices."""
    return open_model(path).load(PackedLayout(), Precision(dtype, quantize), lambda *step: None).params


def load_exact(path):
    """The parameters as arrays."""
    return open_model(path).load(ArrayLayout(), Precision("float32", None), lambda *step: None).params


def mixed(name):
    """As files of the mixture Q4_K_M are: some matrices of a finer format than the others of the same leaf."""
    return {"attn_v": Kind.Q6_K, "ffn_down": Kind.Q6_K, "token_embd": Kind.Q8_0}.get(name, Kind.Q4_K)


def formats_of(matrix):
    """By layer, then by part."""
    return [[place.format for place in parts] for parts in matrix.placement.places]


@dataclass(frozen=True)
class Tensor:
    """As far as a format is chosen by it."""

    format: Format
    name: str = "t"
    shape: tuple[int, ...] = (16, 32)
    num_bytes: int = 0
    rows: object = "rows"
    float32: None = field(default=None)

    def encoded(self):
        return self.rows


def precision(dtype="auto", quantize=None):
    return Precision(dtype, quantize)


@pytest.mark.parametrize(
    ("wanted", "of_file", "expected"),
    [
        (precision("float32"), Format.INT4, Format.FLOAT32),
        (precision("float32"), Format.FLOAT16, Format.FLOAT32),
        (precision("bfloat16"), Format.Q4_K, Format.Q4_K),
        (precision("bfloat16"), Format.FLOAT16, Format.BFLOAT16),
        (precision(), Format.Q6_K, Format.Q6_K),
        (precision(), Format.BFLOAT16, Format.BFLOAT16),
        (precision(), Format.FLOAT16, Format.FLOAT16),
        (precision(quantize="int8"), Format.BFLOAT16, Format.INT8),
        (precision(quantize="int8"), Format.FLOAT16, Format.INT8),
        (precision(quantize="int4"), Format.BFLOAT16, Format.INT4_MIN),
        (precision(quantize="int4"), Format.Q6_K, Format.Q6_K),
    ],
)
def test_the_format_of_a_tensor(wanted, of_file, expected):
    assert packed_format(Tensor(of_file), wanted) is expected


@pytest.mark.parametrize(
    ("wanted", "of_file", "expected"),
    [
        (precision(), Format.Q4_K, Format.BFLOAT16),
        (precision(), Format.INT4, Format.BFLOAT16),
        (precision("bfloat16"), Format.IQ4_NL, Format.BFLOAT16),
        (precision(), Format.INT8, Format.INT8),
        (precision(), Format.FLOAT16, Format.FLOAT16),
        (precision(quantize="int8"), Format.Q4_K, Format.INT8),
    ],
)
def test_the_format_of_what_a_transform_has_made_of_a_tensor(wanted, of_file, expected):
    assert packed_format(Tensor(of_file, rows=None), wanted) is expected


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q8_0, Kind.IQ4_NL, Kind.Q4_K])
def test_transformed_integers_are_packed(tmp_path, kind):
    """As the values of MiMo's GGUF files are, whose heads are made wider."""
    opened = open_model(write_random_model(tmp_path / "model.gguf", lambda name: kind))
    leaf = next(leaf for leaf in opened.model.leaves() if leaf.name == "down")
    ((stored,), *_) = opened.tensors.of(leaf)
    wide = spread_outputs(4, stored.shape[0] // 4, stored.shape[0] // 2, scale=0.5)(stored)
    packed = PackedLayout().matrix(leaf, [[wide]], precision(), lambda num_bytes: None)
    step = np.abs(wide.float32()).max() * (1 / 127 if kind is Kind.Q8_0 else 2**-8)
    np.testing.assert_allclose(unpack_layers(packed)[0], wide.float32(), rtol=0, atol=step)


Q4_K, Q6_K = Format.Q4_K, Format.Q6_K


@pytest.mark.parametrize(
    ("kind_of", "formats"),
    [
        (lambda name: Kind.Q4_0, {"qkv": [Format.INT4] * 3, "gate_up": [Format.INT4] * 2, "down": [Format.INT4]}),
        (mixed, {"qkv": [Q4_K, Q4_K, Q6_K], "gate_up": [Q4_K, Q4_K], "down": [Q6_K], "embedding": [Format.INT8]}),
        (lambda name: Kind.F16, {"qkv": [Format.FLOAT16] * 3, "down": [Format.FLOAT16]}),
        (lambda name: Kind.BF16, {"qkv": [Format.BFLOAT16] * 3, "down": [Format.BFLOAT16]}),
        (lambda name: Kind.NVFP4, {"qkv": [Format.BFLOAT16] * 3, "down": [Format.BFLOAT16]}),
        (lambda name: Kind.IQ3_S, {"qkv": [Format.IQ3_S] * 3, "down": [Format.IQ3_S]}),
        (lambda name: Kind.IQ2_XS, {"qkv": [Format.IQ2_S] * 3, "down": [Format.IQ2_S]}),
        (
            lambda name: {"attn_k": Kind.F32, "ffn_up": Kind.Q3_K, "ffn_gate": Kind.Q2_K}.get(name, Kind.IQ4_XS),
            {
                "qkv": [Format.IQ4_XS, Format.BFLOAT16, Format.IQ4_XS],
                "gate_up": [Format.Q2_K, Format.Q3_K],
                "down": [Format.IQ4_XS],
            },
        ),
    ],
)
def test_a_packed_tree_holds_what_the_file_holds(tmp_path, kind_of, formats):
    path = write_random_model(tmp_path / "model.gguf", kind_of)
    params, exact = load(path), load_exact(path)
    for name, kinds in formats.items():
        assert formats_of(params[name]) == [kinds] * len(params[name].placement.places)
        rtol = 2**-8 if Format.BFLOAT16 in kinds and kind_of("attn_k") is not Kind.BF16 else 0
        unpacked = unpack_layers(params[name], is_gated=name == "gate_up")
        expected = exact[name][None] if name == "embedding" else np.swapaxes(exact[name], 1, 2)
        np.testing.assert_allclose(unpacked, expected, rtol=rtol)
    for name in ("attention_norm", "mlp_norm"):
        assert np.array_equal(params[name], exact[name])
    assert np.array_equal(params["output_norm"], exact["output_norm"])


def test_layers_keep_formats_of_their_own(tmp_path):
    """As the mixture Q4_K_M has them, in which every other layer is finer."""
    layers = iter([Kind.Q6_K, Kind.Q4_K])
    path = write_random_model(tmp_path / "model.gguf", lambda name: next(layers) if name == "attn_v" else Kind.Q4_K)
    params, exact = load(path), load_exact(path)
    assert formats_of(params["qkv"]) == [[Q4_K, Q4_K, Q6_K], [Q4_K, Q4_K, Q4_K]]
    np.testing.assert_array_equal(unpack_layers(params["qkv"]), np.swapaxes(exact["qkv"], 1, 2))


def test_the_name_of_the_type_says_what_integers_are_multiplied_as(tmp_path):
    """What it names must tell engines apart whose tokens differ."""
    path = write_random_model(tmp_path / "model.gguf", lambda name: Kind.F32 if name == "attn_v" else Kind.Q4_0)
    names = PackedLayout().dtype_names(load(path, "bfloat16")["qkv"]), PackedLayout().dtype_names(load(path)["qkv"])
    assert names == ({"int4 as bfloat16", "bfloat16"}, {"int4", "bfloat16"})


def test_floats_beside_integers_are_rounded_into_the_same_leaf(tmp_path):
    """With --quantize; the integers of the file stay what they are."""

    def kind_of(name):
        return Kind.F32 if name in ("attn_v", "ffn_up") else Kind.Q4_1

    path = write_random_model(tmp_path / "model.gguf", kind_of)
    exact = load_exact(path)
    for quantize, step in (("int8", 1 / 127), ("int4", 1 / 15)):
        params = load(path, quantize=quantize)
        rounded = Format.INT8 if quantize == "int8" else Format.INT4_MIN
        assert formats_of(params["qkv"]) == [[Format.INT4_MIN, Format.INT4_MIN, rounded]] * 2
        expected = np.swapaxes(exact["qkv"], 1, 2)
        error = np.abs(unpack_layers(params["qkv"]) - expected)
        num_integers = HIDDEN + 128
        assert error[:, :num_integers].max() == 0
        assert 0 < error[:, num_integers:].max() < step * np.ptp(expected)


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_a_packed_tree_takes_little_more_than_the_file(tmp_path, dtype):
    path = write_random_model(tmp_path / "model.gguf", lambda name: Kind.Q4_0)
    params = load(path, dtype)
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
