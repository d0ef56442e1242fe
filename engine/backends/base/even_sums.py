"""Sums and norms over the last axis whose bits do not depend on the shape of a step."""

import jax
import jax.numpy as jnp
from jax import lax


def normed(x: jax.Array, weights: jax.Array | None, epsilon: float) -> jax.Array:
    """An RMS norm over the last axis, in float32."""
    wide = x.astype(jnp.float32)
    made = wide * lax.rsqrt(summed(multiplied(wide, wide)) / x.shape[-1] + epsilon)
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


def multiplied(x: jax.Array, y: jax.Array | float) -> jax.Array:
    """x * y in float32, for what is added to something: a compiler may or may not round a product before.

    Both are cut into halves of 12 bits, whose products are exact, so that it makes no difference.
    """
    (x_high, x_low), (y_high, y_low) = _halves(x), _halves(y)
    return x_high * y_high + x_high * y_low + x_low * y_high + x_low * y_low


def _halves(x: jax.Array | float) -> tuple[jax.Array, jax.Array]:
    """The first 12 bits of float32 significands, and the rest."""
    wide = jnp.asarray(x, jnp.float32)
    bits = lax.bitcast_convert_type(wide, jnp.uint32) & jnp.uint32(0xFFFFF000)
    high = lax.bitcast_convert_type(bits, jnp.float32)
    return high, wide - high
