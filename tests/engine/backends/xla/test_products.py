"""Products in XLA against plain float64 ones: norms, biases, activations, scales and caps."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from engine.backends.base.operands import Activation, Norm, NormKind
from engine.backends.xla.products import XlaProducts

NUM_LAYERS, NUM_TOKENS, INPUTS, OUTPUTS, LAYER = 3, 5, 24, 12, 2
PRODUCTS = XlaProducts()
NUMPY_ACTIVATIONS = {
    Activation.NONE: lambda x: x,
    Activation.SILU: lambda x: x / (1 + np.exp(-x)),
    Activation.GELU_TANH: lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    Activation.GELU_ERF: np.vectorize(lambda x: x / 2 * (1 + math.erf(x / math.sqrt(2)))),
    Activation.RELU: lambda x: np.maximum(x, 0),
    Activation.RELU_SQUARED: lambda x: np.maximum(x, 0) ** 2,
    Activation.QUICK_GELU: lambda x: x / (1 + np.exp(-1.702 * x)),
}


@pytest.fixture
def arrays():
    random = np.random.default_rng(0)
    shapes = {
        "x": (NUM_TOKENS, INPUTS),
        "norm": (NUM_LAYERS, INPUTS),
        "norm_bias": (NUM_LAYERS, INPUTS),
        "weights": (NUM_LAYERS, INPUTS, OUTPUTS),
        "bias": (NUM_LAYERS, OUTPUTS),
        "addend": (NUM_TOKENS, OUTPUTS),
    }
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def make_norm(kind, arrays):
    if kind is NormKind.NONE:
        return None
    bias = jnp.asarray(arrays["norm_bias"]) if kind is NormKind.LAYER else None
    return Norm(jnp.asarray(arrays["norm"]), 1e-3, kind, bias)


def normed(kind, arrays, layer=LAYER):
    x = arrays["x"].astype(np.float64)
    if kind is NormKind.NONE:
        return x
    centred = x - x.mean(axis=1, keepdims=True) if kind is NormKind.LAYER else x
    scaled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-3) * arrays["norm"][layer]
    return scaled + arrays["norm_bias"][layer] if kind is NormKind.LAYER else scaled


@pytest.mark.parametrize("kind", NormKind)
@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_norm_product(arrays, kind, activation, is_gated, has_bias):
    got = PRODUCTS.norm_product(
        jnp.asarray(arrays["x"]), make_norm(kind, arrays), jnp.asarray(arrays["weights"]), jnp.int32(LAYER), None,
        bias=jnp.asarray(arrays["bias"]) if has_bias else None, activation=activation, is_gated=is_gated,
    )  # fmt: skip
    expected = normed(kind, arrays) @ arrays["weights"][LAYER] + (arrays["bias"][LAYER] if has_bias else 0)
    if is_gated:
        gate, up = np.split(expected, 2, axis=1)
        expected = NUMPY_ACTIVATIONS[activation](gate) * up
    else:
        expected = NUMPY_ACTIVATIONS[activation](expected)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("has_bias", [False, True])
def test_add_product(arrays, scale, has_bias):
    got = PRODUCTS.add_product(
        jnp.asarray(arrays["addend"]), jnp.asarray(arrays["x"]), jnp.asarray(arrays["weights"]), jnp.int32(LAYER), None,
        bias=jnp.asarray(arrays["bias"]) if has_bias else None, scale=scale,
    )  # fmt: skip
    product = arrays["x"].astype(np.float64) @ arrays["weights"][LAYER] + (arrays["bias"][LAYER] if has_bias else 0)
    np.testing.assert_allclose(got, arrays["addend"] + scale * product, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", NormKind)
@pytest.mark.parametrize(("scale", "softcap"), [(1.0, 0.0), (0.5, 0.0), (1.0, 2.0), (3.0, 2.0)])
def test_head_product(arrays, kind, scale, softcap):
    embedding, bias = arrays["weights"][0].T, arrays["bias"][:1]
    got = PRODUCTS.head_product(
        jnp.asarray(arrays["x"]), jnp.array([4, 0, -1]), make_norm(kind, arrays), jnp.asarray(embedding),
        bias=jnp.asarray(bias), scale=scale, softcap=softcap,
    )  # fmt: skip
    expected = scale * (normed(kind, arrays, layer=0)[[4, 0]] @ embedding.T + bias)
    if softcap:
        expected = softcap * np.tanh(expected / softcap)
    np.testing.assert_allclose(np.asarray(got)[:2], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_embed(arrays, scale):
    embedding = arrays["weights"][0]
    got = PRODUCTS.embed(jnp.asarray(embedding), jnp.array([3, 0, 3]), None, scale=scale)
    np.testing.assert_array_equal(got, scale * embedding[[3, 0, 3]])
