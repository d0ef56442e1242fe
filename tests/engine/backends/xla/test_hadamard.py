"""The Hadamard transform of heads of any size."""

import jax.numpy as jnp
import numpy as np
import pytest

from engine.backends.xla.hadamard import hadamard


@pytest.mark.parametrize(("head_dim", "block"), [(8, 8), (64, 64), (72, 8), (80, 16), (96, 32), (45, 1)])
def test_it_turns_each_block_and_undoes_itself(head_dim, block):
    x = np.random.default_rng(0).standard_normal((3, 2, head_dim)).astype(np.float32)
    once = np.asarray(hadamard(jnp.asarray(x)))
    lengths, turned = (np.linalg.norm(each.reshape(3, 2, -1, block), axis=-1) for each in (x, once))
    np.testing.assert_allclose(turned, lengths, rtol=1e-5)
    np.testing.assert_allclose(hadamard(jnp.asarray(once)), x, rtol=0, atol=1e-5)


def test_one_feature_is_spread_evenly_over_its_block():
    for feature in range(96):
        spread = np.abs(np.asarray(hadamard(jnp.eye(96, dtype=jnp.bfloat16)[feature])))
        of_block = np.arange(96) // 32 == feature // 32
        np.testing.assert_allclose(spread[of_block], 32**-0.5, rtol=1e-6)
        assert not spread[~of_block].any()
