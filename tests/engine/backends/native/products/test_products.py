"""Products of activations and packed matrices, against float64.

An output is a sum of inputs times weights. Bounded are, for each output: what rounding the inputs
to the format's activations can do to that sum (8-bit integers for the integer formats, bfloat16
for bfloat16), and what float32 arithmetic can, of the terms' magnitudes. Beside these certain
bounds, the root mean square of all errors is as small as chance makes it.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backends.base.operands import Activation, NormKind
from engine.backends.native import products
from engine.weights.encodings import Encoding
from engine.weights.packing import GROUP, TILE, Format, PackedMatrix, Place, Quantised, pack_quantised, quantise
from tests.engine.backends.native.support.calls import EPSILON, NOTHING, add_product, head_product, norm_product
from tests.engine.backends.native.support.matrices import Matrices, fitted, make_matrix
from tests.engine.backends.native.support.steps import make_step, random_step
from tests.packed_blocks import has_minima, pack, pack_stack

FLOAT32_UNIT = 2.0**-24  # half the distance of 1 to the next float32: what rounding does at most, relatively
BFLOAT16_UNIT = 2.0**-8
MOST_BYTE = 120.0  # of a rounded input
# Root mean square of the error by that of the results, for inputs of a normal distribution.
TYPICAL_ERROR = dict.fromkeys(Format, 0.012) | {Format.BFLOAT16: 3e-3}
TYPICAL_ERROR |= dict.fromkeys((Format.FLOAT32, Format.FLOAT16), 2e-06)

formats = pytest.mark.parametrize("kind", list(Format), ids=lambda kind: kind.name)


def normalise(x: np.ndarray, norm: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + EPSILON) * norm.astype(np.float64)


def reference(kind: Format, x: np.ndarray, matrix: Matrices, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """x @ transpose(W), float64[tokens, outputs], and the bound of each result's error."""
    weights, magnitudes = matrix.values[layer], matrix.magnitudes[layer]
    result = x @ weights.T
    terms = np.abs(x) @ magnitudes.T
    num_roundings = 2 * x.shape[1] + 16
    if kind.is_integer:
        num_roundings = 4 * (x.shape[1] // GROUP) + 16  # within a group sums are exact
        groups = np.abs(x).reshape(len(x), -1, GROUP).max(axis=2)
        half_steps = (groups + groups.max(axis=1, keepdims=True) * 2.0**-19) / MOST_BYTE / 2
        of_groups = np.abs(weights).reshape(len(weights), -1, GROUP).sum(axis=2)
        inputs_rounded = half_steps * 1.001 @ of_groups.T
    else:
        inputs_rounded = terms * (BFLOAT16_UNIT if kind is Format.BFLOAT16 else 0.0)
    return result, inputs_rounded + num_roundings * FLOAT32_UNIT * terms + 1e-30


def assert_close(kind: Format, got: np.ndarray, want: np.ndarray, bound: np.ndarray) -> None:
    error = np.abs(got - want)
    assert np.isfinite(got).all()
    worst = np.unravel_index(np.argmax(error / bound), error.shape)
    assert (error <= bound).all(), f"at {worst}: {got[worst]}, not {want[worst]} within {bound[worst]}"
    if got.size >= 400:
        assert np.sqrt((error**2).mean() / (want**2).mean()) < TYPICAL_ERROR[kind]


@formats
@settings(max_examples=4)
@given(
    num_tokens=st.one_of(st.integers(1, 20), st.integers(21, 300)),
    outputs=st.integers(1, 100),
    groups=st.one_of(st.integers(1, 8), st.just(1536 // GROUP)),
    seed=st.integers(0, 2**32 - 1),
)
def test_norm_and_product(variant, kind, num_tokens, outputs, groups, seed):
    random, inputs = np.random.default_rng(seed), fitted(kind, groups * GROUP)
    matrix = make_matrix(random, kind, 2, outputs, inputs)
    step = random_step(random, num_tokens)
    real, layer = step.real(), int(random.integers(2))
    x = random.standard_normal((step.num_tokens, inputs)).astype(np.float32)
    x *= np.exp(random.uniform(-5, 5, (step.num_tokens, 1))).astype(np.float32)
    norm = random.uniform(0.5, 1.5, (2, inputs)).astype(np.float32)
    padding = np.setdiff1d(np.arange(step.num_tokens), real)
    x[padding] = np.nan

    got = norm_product(x, step.rows, layer, norm, matrix.packed, num_tiles=step.num_tiles)
    if len(real):
        want, bound = reference(kind, normalise(x[real], norm[layer]), matrix, layer)
        assert_close(kind, np.asarray(got)[real], want, bound)


@formats
@pytest.mark.parametrize(("outputs", "inputs", "num_tokens"), [(48, 96, 5), (40, 576, 33), (72, 64, 150)])
def test_addend_and_product(variant, kind, outputs, inputs, num_tokens):
    random, inputs = np.random.default_rng(outputs), fitted(kind, inputs)
    matrix = make_matrix(random, kind, 1, outputs, inputs)
    x = random.standard_normal((num_tokens, inputs)).astype(np.float32)
    addend = random.standard_normal((num_tokens, outputs)).astype(np.float32)
    step = make_step([0] * num_tokens)
    got = add_product(addend, x, step.rows, 0, matrix.packed)
    want, bound = reference(kind, x.astype(np.float64), matrix, 0)
    assert_close(kind, np.asarray(got) - addend.astype(np.float64), want, bound + np.abs(want + addend) * 2.0**-23)


@formats
@pytest.mark.parametrize(("outputs", "num_tokens"), [(16, 1), (40, 19), (40, 150)])
def test_gated_product(variant, kind, outputs, num_tokens):
    inputs = fitted(kind, 192)
    random = np.random.default_rng(outputs)
    matrix = make_matrix(random, kind, 1, 2 * -(-outputs // 16) * 16, inputs, is_gated=True)
    packed = PackedMatrix(matrix.packed.blocks, matrix.packed.placement, 2 * outputs)  # gate and up end within a tile
    x = random.standard_normal((num_tokens, inputs)).astype(np.float32)
    norm = np.ones((1, inputs), np.float32)
    step = make_step([0] * num_tokens)
    got = norm_product(x, step.rows, 0, norm, packed, activation=Activation.SILU, is_gated=True)

    def halves(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        gate, up = np.split(values, 2, axis=1)
        return gate[:, :outputs], up[:, :outputs]

    want, bound = reference(kind, normalise(x, norm[0]), matrix, 0)
    (gate, up), (gate_bound, up_bound) = halves(want), halves(bound)
    silu = gate / (1 + np.exp(-gate))
    gate_bound = 1.1 * gate_bound + np.abs(silu) * 2.0**-20  # silu is nowhere steeper than 1.1
    total = gate_bound * np.abs(up) + np.abs(silu) * up_bound + gate_bound * up_bound + np.abs(silu * up) * 2.0**-20
    error = np.abs(np.asarray(got) - silu * up)
    assert (error <= total).all()


@formats
def test_logits_of_the_sampled_tokens(variant, kind):
    random, inputs = np.random.default_rng(3), fitted(kind, 160)
    matrix = make_matrix(random, kind, 1, 200, inputs)
    x = random.standard_normal((40, inputs)).astype(np.float32)
    norm = random.uniform(0.5, 1.5, inputs).astype(np.float32)
    sampled = np.array([39, -1, 0, 7, 7, -1, 21, -1], np.int32)
    got = np.asarray(head_product(x, sampled, norm, matrix.packed))
    real = sampled >= 0
    want, bound = reference(kind, normalise(x[sampled[real]], norm), matrix, 0)
    assert_close(kind, got[real], want, bound)
    np.testing.assert_array_equal(got[3], got[4])


@formats
def test_rows_of_the_embedding_are_exact(variant, kind):
    random = np.random.default_rng(4)
    matrix = make_matrix(random, kind, 1, 50, fitted(kind, 96))
    tokens = np.array([0, 49, 17, 31, 5, 5, 2**30, -3], np.int32)
    step = make_step([0, 0, 0, -1], [(0, 4)], 4)
    got = np.asarray(products.embed(tokens, step.rows, matrix.packed, num_tiles=1))
    for row in (0, 1, 2, 4, 5):
        np.testing.assert_allclose(got[row], matrix.values[0, tokens[row]], rtol=1e-6, atol=1e-6)
    assert np.isfinite(got[6:8]).all()  # tokens that there are none of


@formats
def test_a_row_is_the_same_whatever_is_beside_it(variant, kind):
    random = np.random.default_rng(5)
    num_tokens, inputs = 200, fitted(kind, 32 * 27)
    matrix = make_matrix(random, kind, 1, 40, inputs)
    norm = random.uniform(0.5, 1.5, (1, inputs)).astype(np.float32)
    x = random.standard_normal((num_tokens, inputs)).astype(np.float32)

    @jax.jit
    def run(x, rows):
        return norm_product(x, rows, 0, norm, matrix.packed)

    together = np.asarray(run(x, make_step([0] * num_tokens).rows))
    # Every kernel of so many rows, several blocks, and so many of them that each thread has some for itself.
    for count in (1, 2, 3, 4, 5, 8, 9, 12, 13, 16, 17, 33, 49, 64, 128, 145):
        order = random.permutation(num_tokens)
        real = np.sort(random.permutation(num_tokens)[:count])
        some = np.asarray(run(x[order], make_step([0 if i in real else -1 for i in range(num_tokens)]).rows))
        np.testing.assert_array_equal(some[real], together[order[real]])


@pytest.mark.parametrize(
    "kind", [kind for kind in Format if kind.is_integer and not kind.is_k], ids=lambda kind: kind.name
)
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("byte", [0, 255])
def test_the_largest_numbers_do_not_saturate(variant, kind, byte, sign):
    outputs, inputs = 32, 128
    shape = (outputs, inputs // GROUP)
    numbers = np.full((*shape, GROUP // 2 if kind.is_nibbles else GROUP), byte, np.uint8)  # a nibble is 0 or 15
    number = (byte & 15 if kind.is_nibbles else byte) - (0 if has_minima(kind) else 8 if kind.is_nibbles else 128)
    minima = np.full(shape, 0.5, np.float32) if has_minima(kind) else None
    if kind is Format.MXFP4:
        number = -6 if byte else 6
        row = [125, *[0xFF if byte else 0x77] * (GROUP // 2)] * (inputs // GROUP)  # 1/4 as the scale
        tiles = pack(Encoding.MXFP4, np.array([row] * outputs, np.uint8), kind, inputs)
    elif kind is Format.IQ4_NL:
        number = 113 if byte else -127
        row = [*np.array([0.25], np.float16).tobytes(), *[byte] * (GROUP // 2)] * (inputs // GROUP)
        tiles = pack(Encoding.IQ4_NL, np.array([row] * outputs, np.uint8), kind, inputs)
    else:
        tiles = pack_quantised(Quantised(kind, np.full(shape, 0.25, np.float32), minima, numbers))
    packed = pack_stack([tiles], kind, outputs)
    # A zero point counts in steps of the scale.
    minimum = 0.5 * (0.25 if kind.has_zero_points else 1.0) if has_minima(kind) else 0.0
    weight = 0.25 * number + minimum
    for num_rows in (1, 2, 3, 8, 12, 20):  # the kernels of so many rows, and of several blocks
        x = np.full((num_rows, inputs), sign, np.float32)
        x[:, 5::GROUP] = -sign  # values on both sides of 0 are rounded to the largest bytes, and have no offset
        got = add_product(np.zeros((num_rows, outputs), np.float32), x, make_step([0] * num_rows).rows, 0, packed)
        of_row = sign * weight * inputs * (GROUP - 2) / GROUP
        np.testing.assert_allclose(got, np.full((num_rows, outputs), of_row), rtol=1e-6)


@formats
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_stays_none(variant, kind, bad):
    random = np.random.default_rng(6)
    inputs = fitted(kind, 64)
    matrix = make_matrix(random, kind, 1, 16, inputs)
    x = random.standard_normal((3, inputs)).astype(np.float32)
    x[1, 40] = bad
    addend = np.zeros((3, 16), np.float32)
    got = np.asarray(add_product(addend, x, make_step([0] * 3).rows, 0, matrix.packed))
    assert not np.isfinite(got[1]).any()
    assert np.isfinite(got[[0, 2]]).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_zeros_and_groups_of_very_different_size(variant, bits):
    random = np.random.default_rng(7)
    weights = random.standard_normal((16, 128)).astype(np.float32)
    x = random.standard_normal((6, 128)).astype(np.float32)
    x[0] = 0.0
    x[1, :32] = 0.0
    x[2, 32:64] *= 1e-30
    x[3] *= 1e-30
    x[4] *= 1e-30
    x[4, 32:64] = 0.0
    x[5] *= 1e-38  # whose products with the scales are no normal numbers
    quantised = quantise(weights, bits)
    packed = pack_stack([pack_quantised(quantised)], quantised.format, 16)
    got = np.asarray(add_product(np.zeros((6, 16), np.float32), x, make_step([0] * 6).rows, 0, packed))
    exact = products.embed(np.arange(16, dtype=np.int32), make_step([0] * 16).rows, packed, num_tiles=0)
    want = x.astype(np.float64) @ np.asarray(exact, np.float64).T
    np.testing.assert_array_equal(got[0], 0.0)
    assert np.abs(got - want).max(axis=1)[1:3] == pytest.approx(0.0, abs=0.2)
    for row in (3, 4):
        assert np.abs(got[row] - want[row]).max() < 0.02 * np.abs(want[row]).max()
    assert np.abs(got[5]).max() < 1e-35


def call(**changes):
    """A right call but for the changes."""
    matrix = make_matrix(np.random.default_rng(8), Format.INT8, 2, 32, 64)
    arguments = dict(
        x=np.zeros((3, 64), np.float32),
        rows=make_step([0] * 3).rows,
        layer=np.int32(0),
        norm=np.ones((2, 64), np.float32),
        norm_bias=NOTHING,
        weights=matrix.packed,
        bias=np.ones((2, 32), np.float32),
        norm_kind=NormKind.RMS,
        epsilon=EPSILON,
        activation=Activation.NONE,
        is_gated=False,
        num_tiles=0,
    )
    return products.norm_product(**(arguments | changes))


def zeros(num_outputs: int, num_tiles: int | None = None) -> PackedMatrix:
    """Two layers of 64 inputs."""
    tiles = -(-num_outputs // TILE) if num_tiles is None else num_tiles
    return pack_stack([np.zeros((tiles, 2 * 544), np.uint8)] * 2, Format.INT8, num_outputs)


def placed(place: Place) -> PackedMatrix:
    """A matrix that is said to lie elsewhere than it does."""
    matrix = zeros(32)
    return replace(matrix, placement=replace(matrix.placement, places=((place,), (place,))))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(x=np.zeros((3, 96), np.float32), norm=np.ones((2, 96), np.float32)), "x has another shape"),
        (dict(norm=np.ones((2, 32), np.float32)), "the norm has another shape"),
        (dict(norm=np.ones((1, 64), np.float32), layer=np.int32(1)), "there is no such norm"),
        (dict(bias=np.ones((2, 64), np.float32)), "the bias has another shape"),
        (dict(bias=np.ones((1, 32), np.float32), layer=np.int32(1)), "there is no such bias"),
        (
            dict(norm_kind=NormKind.LAYER, norm_bias=np.ones((2, 32), np.float32)),
            "the norm's bias has another shape",
        ),
        (dict(layer=np.int32(2), norm=np.ones((3, 64), np.float32), bias=NOTHING), "there is no such layer"),
        (dict(layer=np.int32(-1)), "there is no such norm"),
        (dict(layer=np.int32(-1), norm=NOTHING, norm_kind=NormKind.NONE), "there is no such layer"),
        (dict(rows=make_step([0] * 2).rows), "the number of tokens does not fit the rows"),
        (dict(num_tiles=4), "rows have another shape"),
        (dict(is_gated=True, weights=zeros(48)), "y has another"),
        (dict(weights=zeros(33, num_tiles=2)), "y has another shape"),
        (dict(weights=replace(zeros(32), blocks=np.zeros(2 * 1088 - 1, np.uint8))), "a matrix has another shape"),
        (dict(weights=placed(Place(Format.INT8, -64, 1088))), "a matrix has another shape"),
        (dict(weights=placed(Place(Format.INT8, 0, 1087))), "a matrix has another shape"),
        (dict(weights=placed(Place(Format.INT8, 64, 1 << 30))), "a matrix has another shape"),
        (dict(weights=placed(Place(len(Format), 0, 1088))), "unknown format"),  # type: ignore[arg-type]
        (dict(weights=placed(Place(Format.Q4_K, 0, 1088))), "the inputs are no whole blocks"),
    ],
)
def test_a_wrong_call_is_an_error(variant, changes, message):
    # JAX raises one or the other, depending on whether it has compiled such a call before.
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=f"eagre: {message}"):
        jax.block_until_ready(call(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(norm_kind=3), r"norm_kind is 3; it is one of \[0, 1, 2\]"),
        (dict(norm_kind=NormKind.NONE), r"norm has the shape \(2, 64\), but norm_kind is NONE, for which it is empty"),
        (dict(norm=NOTHING), "norm is empty, but norm_kind is RMS, which has weights"),
        (
            dict(norm_bias=np.ones((2, 64), np.float32)),
            r"norm_bias has the shape \(2, 64\), but norm_kind is RMS",
        ),
        (dict(activation=9), r"activation is 9; it is one of \[0, 1, 2, 3, 4, 5, 6\]"),
    ],
)
def test_kinds_that_there_are_none_of(variant, changes, message):
    with pytest.raises(ValueError, match=message):
        call(**changes)
