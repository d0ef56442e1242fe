"""What a product does before and after it multiplies: kinds of norm, biases, activations, scales and soft caps.

The formats of weights differ in what lies between the two, which test_products.py bounds; here weights are float32, so
that the errors are those of float32 arithmetic. Activations and soft caps are looked at through the identity matrix,
whose product is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from math import erf

import numpy as np
import pytest

from engine.backends.base.operands import Activation, NormKind
from engine.backends.native import products
from engine.weights.packing import GROUP, Format, PackedMatrix
from tests.engine.backends.native.support.calls import EPSILON, NOTHING, add_product, head_product, norm_product
from tests.engine.backends.native.support.matrices import fitted, make_matrix
from tests.engine.backends.native.support.steps import make_step, random_step
from tests.packed_blocks import pack_floats, pack_stack

ACTIVATIONS: dict[Activation, Callable[[np.ndarray], np.ndarray]] = {
    Activation.NONE: lambda x: x,
    Activation.SILU: lambda x: x / (1 + np.exp(-x)),
    Activation.GELU_TANH: lambda x: x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
    Activation.GELU_ERF: lambda x: x / 2 * (1 + np.vectorize(erf, otypes=[np.float64])(x / 2**0.5)),
    Activation.RELU: lambda x: np.maximum(x, 0),
    Activation.RELU_SQUARED: lambda x: np.maximum(x, 0) ** 2,
    Activation.QUICK_GELU: lambda x: x / (1 + np.exp(-1.702 * x)),
}
SHAPES = [(1, 16, 32), (3, 40, 96), (17, 7, 160), (50, 100, 64)]  # tokens, outputs, inputs

activations = pytest.mark.parametrize("activation", list(Activation), ids=lambda kind: kind.name)
shapes = pytest.mark.parametrize(("num_tokens", "outputs", "inputs"), SHAPES)


def normal(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.standard_normal(shape).astype(np.float32)


def identity(size: int) -> PackedMatrix:
    return pack_stack([pack_floats(np.eye(size, dtype=np.float32), Format.FLOAT32)], Format.FLOAT32, size)


def through_identity(x: np.ndarray, activation: Activation) -> np.ndarray:
    """activation(x) of float32[values]."""
    padded = np.zeros(-(-len(x) // GROUP) * GROUP, np.float32)
    padded[: len(x)] = x
    rows = padded.reshape(-1, GROUP)
    of_step, kind = make_step([0] * len(rows)).rows, NormKind.NONE
    out = norm_product(rows, of_step, 0, NOTHING, identity(GROUP), norm_kind=kind, activation=activation)
    return np.asarray(out).reshape(-1)[: len(x)]


def normalised(x: np.ndarray, kind: NormKind, norm: np.ndarray, bias: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    if kind == NormKind.NONE:
        return x
    if kind == NormKind.LAYER:
        x = x - x.mean(axis=1, keepdims=True)
    x = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + EPSILON) * norm
    return x + bias if bias.size else x


def assert_near(got: np.ndarray, want: np.ndarray, rtol: float = 1e-5) -> None:
    """Within rtol of the largest result."""
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=rtol * max(1.0, np.abs(want).max(initial=0.0)))


@pytest.mark.parametrize(
    ("kind", "has_bias"),
    [(NormKind.NONE, False), (NormKind.RMS, False), (NormKind.LAYER, False), (NormKind.LAYER, True)],
)
@shapes
def test_kinds_of_norm(variant, kind, has_bias, num_tokens, outputs, inputs):
    random = np.random.default_rng(num_tokens)
    matrix = make_matrix(random, Format.FLOAT32, 3, outputs, inputs)
    step = random_step(random, num_tokens)
    x = normal(random, step.num_tokens, inputs) + 3  # of a mean that is not 0
    norm = random.uniform(0.5, 1.5, (3, inputs)).astype(np.float32) if kind else NOTHING
    norm_bias = normal(random, 3, inputs) if has_bias else NOTHING
    got = norm_product(
        x, step.rows, 2, norm, matrix.packed, num_tiles=step.num_tiles, norm_kind=kind, norm_bias=norm_bias
    )
    real = step.real()
    want = normalised(x[real], kind, norm[2:], norm_bias[2:]).reshape(-1, inputs) @ matrix.values[2].T
    assert_near(np.asarray(got)[real], want)


def test_a_layer_norm_far_from_zero_keeps_its_digits(variant):
    random = np.random.default_rng(0)
    x = 1000 + normal(random, 5, 64)
    norm, bias = np.ones((1, 64), np.float32), normal(random, 1, 64)
    rows = make_step([0] * 5).rows
    got = norm_product(x, rows, 0, norm, identity(64), norm_kind=NormKind.LAYER, norm_bias=bias)
    # The mean, of magnitude 1000, is rounded by up to 3e-5.
    np.testing.assert_allclose(got, normalised(x, NormKind.LAYER, norm, bias), atol=2e-4)


@activations
@pytest.mark.parametrize("kind", [Format.FLOAT32, Format.INT8, Format.INT4_MIN], ids=lambda kind: kind.name)
@shapes
def test_bias_and_activation(variant, activation, kind, num_tokens, outputs, inputs):
    random = np.random.default_rng(outputs)
    matrix = make_matrix(random, kind, 2, outputs, inputs)
    step = random_step(random, num_tokens)
    real = step.real()
    x, bias = normal(random, step.num_tokens, inputs) / inputs**0.5, normal(random, 2, outputs)

    def run(bias: np.ndarray, activation: Activation) -> np.ndarray:
        got = norm_product(
            x, step.rows, 1, NOTHING, matrix.packed,
            num_tiles=step.num_tiles, norm_kind=NormKind.NONE, bias=bias, activation=activation,
        )  # fmt: skip
        return np.asarray(got)[real].astype(np.float64)

    products_alone = run(NOTHING, Activation.NONE)
    assert_near(run(bias, activation), ACTIVATIONS[activation](products_alone + bias[1]))


@activations
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("num_tokens", "outputs"), [(1, 16), (3, 40), (21, 7), (50, 100)])
def test_gated_product_with_biases(variant, activation, has_bias, num_tokens, outputs):
    inputs = 96
    random = np.random.default_rng(outputs)
    gate, up = normal(random, outputs, inputs), normal(random, outputs, inputs)
    parts = [pack_floats(gate, Format.FLOAT32), pack_floats(up, Format.FLOAT32)]
    packed = pack_stack([parts, parts], Format.FLOAT32, 2 * outputs, is_gated=True)
    step = random_step(random, num_tokens)
    real = step.real()
    x = normal(random, step.num_tokens, inputs) / inputs**0.5
    bias = normal(random, 2, 2 * outputs) if has_bias else NOTHING
    got = norm_product(
        x, step.rows, 1, NOTHING, packed,
        num_tiles=step.num_tiles, norm_kind=NormKind.NONE, bias=bias, activation=activation, is_gated=True,
    )  # fmt: skip
    of_gate, of_up = np.split(bias[1], 2) if has_bias else (0.0, 0.0)
    wide = x[real].astype(np.float64)
    assert_near(np.asarray(got)[real], ACTIVATIONS[activation](wide @ gate.T + of_gate) * (wide @ up.T + of_up))


@activations
def test_an_activation_is_accurate_to_float32(variant, activation):
    x = np.concatenate([np.linspace(-15, 15, 40_001), np.geomspace(1e-30, 1e3, 500), -np.geomspace(1e-30, 1e3, 500)])
    x = x.astype(np.float32)
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        want = ACTIVATIONS[activation](wide)
    got = through_identity(x, activation)
    assert (np.abs(got - want) <= 1e-6 * np.minimum(np.abs(wide), 1.0) + 2.0**-22 * np.abs(want)).all()


@pytest.mark.parametrize(
    "activation", [Activation.GELU_TANH, Activation.GELU_ERF, Activation.RELU], ids=lambda kind: kind.name
)
def test_an_activation_of_what_is_huge_or_no_number(variant, activation):
    got = through_identity(np.array([3e38, -3e38, 0.0], np.float32), activation)
    np.testing.assert_array_equal(got, np.array([3e38, 0.0, 0.0], np.float32))
    assert np.isnan(through_identity(np.array([np.nan], np.float32), activation)).all()


@pytest.mark.parametrize("scale", [1.0, 0.22])
@pytest.mark.parametrize("has_bias", [False, True])
@shapes
def test_addend_with_bias_and_scale(variant, scale, has_bias, num_tokens, outputs, inputs):
    random = np.random.default_rng(inputs)
    matrix = make_matrix(random, Format.FLOAT32, 2, outputs, inputs)
    addend, x = normal(random, num_tokens, outputs), normal(random, num_tokens, inputs)
    bias = normal(random, 2, outputs) if has_bias else NOTHING
    got = add_product(addend, x, make_step([0] * num_tokens).rows, 1, matrix.packed, bias=bias, scale=scale)
    assert_near(got, addend + scale * (x.astype(np.float64) @ matrix.values[1].T + (bias[1] if has_bias else 0.0)))


@pytest.mark.parametrize("kind", list(NormKind), ids=lambda kind: kind.name)
@pytest.mark.parametrize(("scale", "softcap"), [(1.0, 0.0), (0.125, 0.0), (1.0, 30.0), (2.5, 4.0)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_logits_with_bias_scale_and_soft_cap(variant, kind, scale, softcap, has_bias):
    random = np.random.default_rng(7)
    matrix = make_matrix(random, Format.FLOAT32, 1, 200, 64)
    x = normal(random, 12, 64)
    norm = random.uniform(0.5, 1.5, 64).astype(np.float32) if kind else NOTHING
    norm_bias = normal(random, 64) if kind == NormKind.LAYER else NOTHING
    bias = normal(random, 200) if has_bias else NOTHING
    sampled = np.array([11, -1, 0, 3, -5], np.int32)
    got = head_product(
        x, sampled, norm, matrix.packed,
        norm_bias=norm_bias, bias=bias, norm_kind=kind, scale=scale, softcap=softcap,
    )  # fmt: skip
    real = sampled >= 0
    want = normalised(x[sampled[real]], kind, norm, norm_bias) @ matrix.values[0].T
    want = scale * (want + (bias if has_bias else 0.0))
    if softcap:
        want = softcap * np.tanh(want / softcap)
        assert np.abs(want).max() <= softcap
    assert_near(np.asarray(got)[real], want)


def test_a_soft_cap_is_accurate_to_float32(variant):
    x = np.concatenate([np.linspace(-40, 40, 40_001), np.geomspace(1e-30, 1e5, 511)])
    x = x.astype(np.float32).reshape(-1, GROUP)
    sampled = np.arange(len(x), dtype=np.int32)
    got = head_product(x, sampled, NOTHING, identity(GROUP), norm_kind=NormKind.NONE, softcap=4.0)
    np.testing.assert_allclose(got, 4.0 * np.tanh(x.astype(np.float64) / 4.0), rtol=1e-6)


def test_a_negative_soft_cap_is_refused(variant):
    with pytest.raises(ValueError, match=r"softcap is -2\.0; it is not negative"):
        head_product(np.zeros((1, GROUP)), np.zeros(1, np.int32), NOTHING, identity(GROUP), norm_kind=0, softcap=-2.0)


@pytest.mark.parametrize("kind", [Format.BFLOAT16, Format.INT8], ids=lambda kind: kind.name)
def test_scaled_embedding(variant, kind):
    random = np.random.default_rng(1)
    matrix = make_matrix(random, kind, 1, 50, 96)
    tokens = np.array([0, 49, 17, 5], np.int32)
    rows = make_step([0] * 4).rows
    plain = np.asarray(products.embed(tokens, rows, matrix.packed, num_tiles=0))
    got = products.embed(tokens, rows, matrix.packed, scale=9.5, num_tiles=0)
    np.testing.assert_array_equal(got, np.float32(9.5) * plain)


@pytest.mark.parametrize("kind", list(Format), ids=lambda kind: kind.name)
def test_a_row_is_the_same_whatever_is_beside_it(variant, kind):
    random = np.random.default_rng(5)
    num_tokens, inputs = 40, fitted(kind, 32 * 9)
    matrix = make_matrix(random, kind, 1, 56, inputs)
    norm, norm_bias, bias = normal(random, 1, inputs), normal(random, 1, inputs), normal(random, 1, 56)
    x = normal(random, num_tokens, inputs)

    def run(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        out = norm_product(
            x, rows, 0, norm, matrix.packed,
            norm_kind=NormKind.LAYER, norm_bias=norm_bias, bias=bias, activation=Activation.GELU_ERF,
        )  # fmt: skip
        return np.asarray(out)

    together = run(x, make_step([0] * num_tokens).rows)
    for count in (1, 2, 4, 8, 12, 16, 17, 33):
        real = np.sort(random.permutation(num_tokens)[:count])
        some = run(x, make_step([0 if i in real else -1 for i in range(num_tokens)]).rows)
        np.testing.assert_array_equal(some[real], together[real])
