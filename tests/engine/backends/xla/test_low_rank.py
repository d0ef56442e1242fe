"""The low-rank products of adapters in XLA: what one request's adapter does is nothing to the others."""

import jax
import jax.numpy as jnp
import numpy as np

from engine.backends.base.operands import LowRankPairs
from engine.backends.base.token_layout import ADAPTER, ADAPTER_SCALE, NUM_ROW_INTS, NUM_TOKENS, token_layout
from engine.backends.xla.low_rank import low_rank

INPUTS, OUTPUTS, RANK = 16, 16, 8


def test_an_adapter_that_overflows_changes_no_row_but_its_own() -> None:
    rows = np.zeros((3, NUM_ROW_INTS), np.int32)
    rows[:, NUM_TOKENS] = 1
    rows[:, ADAPTER] = 0, 1, 2  # none, and both slots
    rows[:, ADAPTER_SCALE] = np.float32(1).view(np.int32)
    down = np.full((2, 1, INPUTS, RANK), 0.5, np.float32)
    down[1] = 1e38  # whose products with the inputs are infinite
    up = np.ones((2, 1, RANK, OUTPUTS), np.float32)
    pairs = LowRankPairs(jnp.asarray(down), jnp.asarray(up), jnp.asarray([RANK, RANK]), (OUTPUTS,))

    @jax.jit
    def add(pairs: LowRankPairs) -> jax.Array:
        layout = token_layout(rows, np.zeros((3, 1), np.int32), num_tiles=0, tile_size=1, page_size=1)
        return low_rank(jnp.ones((3, INPUTS)), pairs, jnp.int32(0), layout)

    added = np.asarray(add(pairs))
    np.testing.assert_array_equal(added[0], np.zeros(OUTPUTS))
    np.testing.assert_array_equal(added[1], np.full(OUTPUTS, 0.5 * INPUTS * RANK))
