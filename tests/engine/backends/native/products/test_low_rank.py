"""The native low-rank products beside numpy: any adapters side by side, of any rank, in both types of their numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engine.backends.base.operands import LowRankPairs
from engine.backends.base.token_layout import ADAPTER, ADAPTER_SCALE, NUM_ROW_INTS, NUM_TOKENS, token_layout
from engine.backends.native import products

LAYER, INPUTS, ENDS, RANK = 1, 48, (1040, 1136), 32
RANKS = (32, 0, 5, 16)
# Six rows of one adapter, none, one that does not change this product, the others, and one with a scale of its own.
ADAPTERS = (1, 4, 1, 0, 1, 2, 3, 1, 1, 4, 1)


def pairs_of(dtype: str) -> LowRankPairs:
    draw = np.random.default_rng(0)
    down = draw.standard_normal((len(RANKS), 2, INPUTS, len(ENDS) * RANK), np.float32)
    up = draw.standard_normal((len(RANKS), 2, RANK, ENDS[-1]), np.float32)
    for slot, rank in enumerate(RANKS):
        down.reshape(len(RANKS), 2, INPUTS, len(ENDS), RANK)[slot, ..., rank:] = 0
        up[slot, :, rank:] = 0
    return LowRankPairs(jnp.asarray(down, dtype), jnp.asarray(up, dtype), jnp.asarray(RANKS, jnp.int32), ENDS)


@jax.jit
def added(x: jax.Array, rows: jax.Array, pairs: LowRankPairs) -> jax.Array:
    layout = token_layout(rows, np.zeros((len(rows), 1), np.int32), num_tiles=0, tile_size=1, page_size=1)
    return products.low_rank(x, layout.rows, jnp.full(1, LAYER), pairs, num_tiles=0)


def rows_of(adapters: tuple[int, ...], scales: np.ndarray) -> np.ndarray:
    rows = np.zeros((len(adapters), NUM_ROW_INTS), np.int32)
    rows[:, NUM_TOKENS], rows[:, ADAPTER] = 1, adapters
    rows[:, ADAPTER_SCALE] = scales.astype(np.float32).view(np.int32)
    return rows


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_row_has_the_product_of_its_own_adapter(native: str, dtype: str) -> None:
    pairs, count = pairs_of(dtype), len(ADAPTERS)
    x = np.random.default_rng(1).standard_normal((count, INPUTS), np.float32)
    scales = np.where(np.arange(count) == 4, 0.5, 1.0)
    got = np.asarray(added(x, rows_of(ADAPTERS, scales), pairs))
    down, up = (np.asarray(half, np.float64)[:, LAYER] for half in (pairs.down, pairs.up))
    for row, adapter in enumerate(ADAPTERS):
        expected, start = np.zeros(ENDS[-1]), 0
        for part, end in enumerate(ENDS):
            if adapter:
                inner = scales[row] * (x[row] @ down[adapter - 1, :, part * RANK : (part + 1) * RANK])
                expected[start:end] = inner @ up[adapter - 1, :, start:end]
            start = end
        np.testing.assert_allclose(got[row], expected, rtol=0, atol=2e-4)
    alone = [added(x[row : row + 1], rows_of(ADAPTERS[row : row + 1], scales[row : row + 1]), pairs) for row in (0, 9)]
    np.testing.assert_array_equal(np.concatenate(alone), got[[0, 9]])
