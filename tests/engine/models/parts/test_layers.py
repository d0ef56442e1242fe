"""What architectures share: a mixture of experts, by each body, against plain float64."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from engine.kernels.interface.operands import Activation
from engine.models.parts.layers import sum_of_experts
from engine.weights.layout import Precision

NUM_LAYERS, NUM_EXPERTS, NUM_TOKENS, HIDDEN, INNER, LAYER = 2, 4, 5, 32, 64, 1


class Tensor:
    """Floats in memory."""

    name = "experts"

    def __init__(self, weights):
        self.weights, self.shape, self.format = weights, weights.shape, None

    def float32(self):
        return self.weights


def test_picked_experts_are_added_by_their_shares(body):
    random = np.random.default_rng(0)

    def weights(outputs, inputs):
        shape = (NUM_LAYERS * NUM_EXPERTS, outputs, inputs)
        return (random.standard_normal(shape) / np.sqrt(inputs)).astype(np.float32)

    gate, up, down = weights(INNER, HIDDEN), weights(INNER, HIDDEN), weights(HIDDEN, INNER)
    x = random.standard_normal((NUM_TOKENS, HIDDEN)).astype(np.float32)
    shares = np.zeros((NUM_TOKENS, NUM_EXPERTS), np.float32)
    picked = [(0, 1), (1, 3), (3, 0), (1, 0), (0, 3)]  # nobody picks expert 2
    for token, experts in enumerate(picked):
        shares[token, experts] = 0.25, 0.75
    unread = LAYER * NUM_EXPERTS + 2
    gate[unread] = np.nan

    precision = Precision("float32", None)
    gate_up = body.weights.matrix(
        [[Tensor(a), Tensor(b)] for a, b in zip(gate, up, strict=True)], precision, is_gated=True
    )
    outer = body.weights.matrix([[Tensor(a)] for a in down], precision, is_gated=False)
    rows = np.stack([np.arange(NUM_TOKENS), np.ones(NUM_TOKENS), np.zeros(NUM_TOKENS)], axis=1).astype(np.int32)
    layout = SimpleNamespace(rows=jnp.asarray(rows), num_tiles=0)

    @jax.jit
    def mixed(x, shares, layer, gate_up, outer):
        def expert(x, place):
            inner = body.products.norm_product(
                x, None, gate_up, place, layout, activation=Activation.SILU, is_gated=True
            )
            return body.products.norm_product(inner, None, outer, place, layout)

        return sum_of_experts(x, shares, layer, expert)

    expected = np.zeros((NUM_TOKENS, HIDDEN))
    for token, experts in enumerate(picked):
        for share, number in zip((0.25, 0.75), experts, strict=True):
            place = LAYER * NUM_EXPERTS + number
            gates = gate[place].astype(np.float64) @ x[token]
            expected[token] += share * (down[place] @ (gates / (1 + np.exp(-gates)) * (up[place] @ x[token])))
    got = mixed(x, shares, jnp.int32(LAYER), gate_up, outer)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
