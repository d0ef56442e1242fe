"""Products of experts, by each body, against plain float64."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engine.kernels.interface.body import Body
from engine.kernels.interface.operands import Activation, Picks
from engine.kernels.interface.token_layout import token_layout
from engine.weights.layout import Precision

NUM_LAYERS, NUM_EXPERTS, NUM_PICKED, HIDDEN, INNER, LAYER, TILE = 2, 5, 2, 32, 64, 1, 8
UNPICKED = 2  # the expert that nobody picks
# Two decode rows, of which one is padding, and two tiles, of which one is full.
ROWS = np.array([[4, 1, 0, 0], [0, 0, 0, 0], [0, TILE, 0, 0], [0, 3, 0, 0]], np.int32)
REAL = [0, *range(2, 2 + TILE), *range(2 + TILE, 5 + TILE)]
NUM_TOKENS = 2 + 2 * TILE


class Tensor:
    """Floats in memory."""

    name = "experts"
    format = None

    def __init__(self, weights: np.ndarray) -> None:
        self.weights, self.shape = weights, weights.shape

    def float32(self) -> np.ndarray:
        return self.weights


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)

    def weights(outputs: int, inputs: int) -> np.ndarray:
        shape = (NUM_LAYERS * NUM_EXPERTS, outputs, inputs)
        values = (random.standard_normal(shape) / np.sqrt(inputs)).astype(np.float32)
        values[LAYER * NUM_EXPERTS + UNPICKED] = np.nan  # which would show where it is read
        return values

    picked = [expert for expert in range(NUM_EXPERTS) if expert != UNPICKED]
    x = random.standard_normal((NUM_TOKENS, HIDDEN)).astype(np.float32)
    experts = np.stack([random.permutation(picked)[:NUM_PICKED] for _ in range(NUM_TOKENS)]).astype(np.int32)
    padding = np.setdiff1d(np.arange(NUM_TOKENS), REAL)
    x[padding] = np.nan
    experts[padding] = UNPICKED
    return {
        "gate": weights(INNER, HIDDEN), "up": weights(INNER, HIDDEN), "down": weights(HIDDEN, INNER),
        "x": x, "addend": random.standard_normal((NUM_TOKENS, HIDDEN)).astype(np.float32), "experts": experts,
        "inner": random.standard_normal((NUM_TOKENS, NUM_PICKED, INNER)).astype(np.float32),
    }  # fmt: skip


def stack(body: Body, *parts: np.ndarray) -> Any:
    layers = [[Tensor(part) for part in place] for place in zip(*parts, strict=True)]
    return body.weights.matrix(layers, Precision("float32", None), is_gated=len(parts) > 1)


def layout() -> Any:
    table = 1 + np.arange(len(ROWS), dtype=np.int32)[:, None].repeat(8, axis=1)
    return token_layout(ROWS, table, num_tiles=2, tile_size=TILE, page_size=16)


def silu(x: np.ndarray) -> np.ndarray:
    values: np.ndarray = x / (1 + np.exp(-x))
    return values


def test_each_token_goes_through_the_experts_it_picks(body: Body, arrays: dict[str, np.ndarray]) -> None:
    @jax.jit
    def product(x: jax.Array, weights: Any, experts: jax.Array) -> jax.Array:
        return body.products.expert_product(
            x, weights, Picks(experts, NUM_EXPERTS), jnp.int32(LAYER), layout(),
            activation=Activation.SILU, is_gated=True,
        )  # fmt: skip

    got = np.asarray(product(arrays["x"], stack(body, arrays["gate"], arrays["up"]), arrays["experts"]))
    assert got.shape == (NUM_TOKENS, NUM_PICKED, INNER)
    for token in REAL:
        x = arrays["x"][token].astype(np.float64)
        for pick, expert in enumerate(arrays["experts"][token]):
            place = LAYER * NUM_EXPERTS + expert
            expected = silu(arrays["gate"][place] @ x) * (arrays["up"][place] @ x)
            np.testing.assert_allclose(got[token, pick], expected, rtol=1e-4, atol=1e-5)


def test_the_products_of_a_tokens_experts_are_added_up(body: Body, arrays: dict[str, np.ndarray]) -> None:
    @jax.jit
    def total(addend: jax.Array, x: jax.Array, weights: Any, experts: jax.Array) -> jax.Array:
        picks = Picks(experts, NUM_EXPERTS)
        return body.products.add_expert_product(addend, x, weights, picks, jnp.int32(LAYER), layout())

    got = np.asarray(total(arrays["addend"], arrays["inner"], stack(body, arrays["down"]), arrays["experts"]))
    for token in REAL:
        expected = arrays["addend"][token].astype(np.float64)
        for pick, expert in enumerate(arrays["experts"][token]):
            expected += arrays["down"][LAYER * NUM_EXPERTS + expert] @ arrays["inner"][token, pick].astype(np.float64)
        np.testing.assert_allclose(got[token], expected, rtol=1e-4, atol=1e-5)
