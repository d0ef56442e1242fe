"""Sums and norms over the last axis whose bits do not depend on the shape of a step."""

import jax
import jax.numpy as jnp
from jax import lax


def normed(x: jax.Array, weights: jax.Array | None, epsilon: float) -> jax.Array:
    """An RMS norm over the last axis, in float32."""
    wide = x.astype(jnp.float32)
    made = wide * lax.rsqrt(summed(wide * wide) / x.shape[-1] + epsilon)
    return made if weights is None else made * weights.astype(jnp.float32)


def summed(x: jax.Array) -> jax.Array:
    """The sum over the last axis, in an order of its own: that of a reduction may depend on the other axes."""
    while x.shape[-1] % 2 == 0:
        first, second = jnp.split(x, 2, axis=-1)
        x = first + second
    total = x[..., :1]
    for index in range(1, x.shape[-1]):
        total = total + x[..., index : index + 1]
    return total
