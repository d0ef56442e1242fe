"""A layer's experts in one call: whatever rows are beside a row, and however many waves they take."""

import jax.numpy as jnp
import numpy as np
import pytest

from engine.backends.base.operands import Activation, Clamp, ExpertBiases, Picks
from engine.backends.base.token_layout import token_layout
from engine.backends.native.products import add_experts
from engine.weights.packing import Format
from tests.engine.backends.native.support.matrices import make_matrix

NUM_EXPERTS, NUM_PICKED, HIDDEN, INNER, TILE = 20, 8, 64, 32, 64
TILES = 3  # with 8 experts of 20 for each token, more pairs than one wave takes, and more experts


def run(arrays, rows, num_tiles, experts=None):
    table = 1 + np.arange(len(rows), dtype=np.int32)[:, None].repeat(16, axis=1)
    layout = token_layout(rows, table, num_tiles=num_tiles, tile_size=TILE, page_size=16)
    picks = Picks(jnp.asarray(arrays["experts"] if experts is None else experts), arrays["shares"], NUM_EXPERTS)
    added = add_experts(
        jnp.asarray(arrays["addend"]), arrays["x"], arrays["gate_up"].packed, arrays["down"].packed, picks,
        jnp.int32(0), layout, activation=Activation.SILU, clamp=arrays["clamp"], biases=arrays["biases"],
    )  # fmt: skip
    return np.asarray(added)


@pytest.fixture(scope="module", params=[(Format.INT4_ZERO, Format.INT8), (Format.MXFP4, Format.MXFP4)], ids=str)
def arrays(request):
    """Those of MXFP4 with biases and a clamp."""
    of_gate_up, of_down = request.param
    random = np.random.default_rng(0)
    num_tokens = TILES * TILE
    biases = [random.standard_normal((NUM_EXPERTS, size)).astype(np.float32) for size in (2 * INNER, HIDDEN)]
    is_of_gpt_oss = of_gate_up is Format.MXFP4
    picked = [random.permutation(NUM_EXPERTS)[:NUM_PICKED] for _ in range(num_tokens)]
    return {
        "clamp": Clamp(alpha=1.7, limit=7.0) if is_of_gpt_oss else None,
        "biases": ExpertBiases(*biases) if is_of_gpt_oss else None,
        "x": jnp.asarray(random.standard_normal((num_tokens, HIDDEN)), jnp.float32),
        "addend": random.standard_normal((num_tokens, HIDDEN)).astype(np.float32),
        "experts": np.stack(picked).astype(np.int32),
        "shares": jnp.asarray(random.uniform(0.1, 1, (num_tokens, NUM_PICKED)), jnp.float32),
        "gate_up": make_matrix(random, of_gate_up, NUM_EXPERTS, 2 * INNER, HIDDEN, is_gated=True),
        "down": make_matrix(random, of_down, NUM_EXPERTS, HIDDEN, INNER),
    }


def rows_of(*counts):
    return np.array([[0, count, 0, 0] for count in counts], np.int32)


def test_a_row_is_the_same_whatever_is_beside_it(variant, arrays):
    together = run(arrays, rows_of(TILE, TILE, TILE), TILES)
    assert np.isfinite(together).all()
    some = run(arrays, rows_of(1, 0, 5), TILES)
    real = [0, *range(2 * TILE, 2 * TILE + 5)]
    np.testing.assert_array_equal(some[real], together[real])
    # Rows that are padding keep what they had.
    others = np.setdiff1d(np.arange(len(some)), real)
    np.testing.assert_array_equal(some[others], arrays["addend"][others])


def test_the_sum_is_that_of_the_experts(variant, arrays):
    got = run(arrays, rows_of(TILE, TILE, TILE), TILES)
    gate_up, down = arrays["gate_up"].values, arrays["down"].values
    for token in range(0, TILES * TILE, 17):
        x, expected = np.asarray(arrays["x"][token], np.float64), arrays["addend"][token].astype(np.float64)
        size = 0.0
        for expert, share in zip(arrays["experts"][token], np.asarray(arrays["shares"][token]), strict=True):
            if arrays["clamp"] is None:
                gate, up = np.split(gate_up[expert] @ x, 2)
                added = down[expert] @ (share * gate / (1 + np.exp(-gate)) * up)
            else:
                clamp, biases = arrays["clamp"], arrays["biases"]
                gate, up = np.split(gate_up[expert] @ x + biases.gate_up[expert], 2)
                gate, up = np.minimum(gate, clamp.limit), np.clip(up, -clamp.limit, clamp.limit)
                inner = (up + 1) * gate / (1 + np.exp(-clamp.alpha * gate))
                added = share * (down[expert] @ inner + biases.down[expert])
            expected, size = expected + added, size + np.abs(added).max()
        # Activations are rounded to 8 bits twice.
        assert np.abs(got[token] - expected).max() < 0.03 * size


def test_a_number_that_is_no_expert_is_refused(variant, arrays):
    with pytest.raises(Exception, match="there is no such expert"):
        run(arrays, rows_of(1, 0, 0), TILES, experts=np.full_like(arrays["experts"], NUM_EXPERTS))
