"""The search of top-k, top-p and typical-p: a threshold found bit by bit, without sorting the vocabulary.

Floats order like their bit patterns (negative ones after a flip), so the largest threshold that still keeps enough
takes 31 passes over a row, whatever the vocabulary's size, and is exact. Tokens that tie with the last one kept are
kept with it.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax


def largest_threshold(keeps_enough: Callable[[jax.Array], jax.Array], start: jax.Array) -> jax.Array:
    """The largest threshold at or above `start` (int32[num_rows], low 31 bits clear) that keeps enough."""

    def set_bit(i: jax.Array, threshold: jax.Array) -> jax.Array:
        candidate = threshold | (jnp.int32(1) << (30 - i))
        return jnp.where(keeps_enough(candidate), candidate, threshold)

    threshold: jax.Array = lax.fori_loop(0, 31, set_bit, start)
    return threshold


def ordered_bits(x: jax.Array) -> jax.Array:
    """int32 keys that order as the floats do; +0.0 and -0.0 share one key."""
    bits = lax.bitcast_convert_type(x, jnp.int32)
    keys = jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)
    return jnp.where(x == 0.0, 0, keys)  # adding 0.0 would do it, but the compiler takes that for nothing
