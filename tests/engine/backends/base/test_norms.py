"""Norms outside a product, as architectures find them, against plain float64 ones."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from engine.backends.base.operands import Norm, NormKind
from engine.models.parts.model import normed

EPSILON, LAYER = 1e-3, 1


@pytest.mark.parametrize("kind", [NormKind.RMS, NormKind.LAYER])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 2e-2)])
def test_a_norm_of_one_layer(kind, dtype, tolerance):
    random = np.random.default_rng(0)
    x = jnp.asarray(random.standard_normal((5, 24)) + 1.0, dtype)
    weight, bias = (jnp.asarray(random.standard_normal((3, 24)), dtype) for _ in range(2))
    got = normed(x, Norm(weight, EPSILON, kind, bias if kind is NormKind.LAYER else None), jnp.int32(LAYER))
    wide = np.asarray(x, np.float64)
    centred = wide - wide.mean(axis=1, keepdims=True) if kind is NormKind.LAYER else wide
    expected = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + EPSILON) * np.asarray(weight[LAYER])
    if kind is NormKind.LAYER:
        expected = expected + np.asarray(bias[LAYER])
    assert got.dtype == dtype
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, rtol=tolerance, atol=tolerance)


def test_without_a_norm_nothing_changes():
    x = jnp.arange(6.0).reshape(2, 3)
    assert (normed(x, None, jnp.int32(0)) == x).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_type_is_that_of_what_is_normed(dtype):
    """Also where the weights are of another, as those of norms that a file does not have."""
    norm = Norm(jnp.ones((1, 8), jnp.float32), 1e-5, NormKind.LAYER)
    assert normed(jnp.ones((2, 8), dtype), norm, jnp.int32(0)).dtype == dtype
