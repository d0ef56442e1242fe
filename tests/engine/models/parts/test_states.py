"""The states that embeddings are made of."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from engine.backends.backends import BACKENDS
from engine.backends.base.operands import Norm
from engine.backends.base.token_layout import single_tokens


def test_the_last_norm_has_the_same_bits_in_every_tile(native: str) -> None:
    products = next(backend for backend in BACKENDS if backend.name == "native").products
    random = np.random.default_rng(0)
    hidden = jnp.asarray(random.standard_normal((64, 576)), jnp.float32)
    norm = Norm(jnp.asarray(random.standard_normal((1, 576)), jnp.float32), 1e-5)

    def states(*tokens: int) -> np.ndarray:
        at = jnp.array(tokens, jnp.int32)
        return np.asarray(products.norm(hidden[at], norm, jnp.int32(0), single_tokens(at)))

    alone = np.concatenate([states(token) for token in range(64)])
    order = random.permutation(64)
    np.testing.assert_array_equal(states(*order), alone[order])
    np.testing.assert_array_equal(states(-1, 7, -1, 9)[[1, 3]], alone[[7, 9]])
