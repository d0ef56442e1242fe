"""The router: which experts a token picks, and what counts of them."""

import jax.numpy as jnp
import numpy as np
import pytest

from engine.models.parts.experts import pick

SHARES = np.array([[0.1, 0.4, 0.2, 0.3], [0.5, 0.25, 0.15, 0.1]])
IN_COMMON = np.array([[3.0], [-2.0]])  # of a token's scores, which a softmax takes away
SCORES = jnp.asarray(np.log(SHARES) + IN_COMMON, jnp.float32)


@pytest.mark.parametrize("normalises", [False, True])
def test_the_largest_shares_are_picked(normalises: bool) -> None:
    picks = pick(SCORES, 2, normalises=normalises)
    assert picks.num_experts == 4
    np.testing.assert_array_equal(picks.experts, [[1, 3], [0, 1]])
    expected = np.array([[0.4, 0.3], [0.5, 0.25]])
    if normalises:
        expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(picks.shares, expected, rtol=1e-6)
