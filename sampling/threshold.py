"""Top-k and top-p cut-offs by search over the bits of a float, without sorting the vocabulary.

Floats order like their bit patterns (negative ones after a flip), so the largest threshold that
still keeps enough is found bit by bit: 32 passes over a row, whatever the vocabulary's size,
and exact. Tokens that tie with the last one kept are kept with it.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax


def top_k_mask(logits: jax.Array, top_k: jax.Array) -> jax.Array:
    """Which tokens are among each row's `top_k` best.

    Args:
        logits: float32[num_rows, vocab_size].
        top_k: int32[num_rows]; values below 1 keep the whole row.

    Returns:
        bool[num_rows, vocab_size].
    """
    keys = _ordered_bits(logits)
    k = jnp.where(top_k < 1, logits.shape[-1], top_k)

    def keeps_enough(threshold: jax.Array) -> jax.Array:
        return jnp.sum(keys >= threshold[:, None], axis=-1, dtype=jnp.int32) >= k

    # The sign bit of two's complement counts downwards, so it is decided first.
    lowest = jnp.full(k.shape, -(2**31), jnp.int32)
    threshold = jnp.where(keeps_enough(jnp.zeros_like(lowest)), 0, lowest)
    threshold = _search_low_bits(threshold, keeps_enough)
    return (keys >= threshold[:, None]) | (top_k < 1)[:, None]


def top_p_mask(weights: jax.Array, top_p: jax.Array) -> jax.Array:
    """Which tokens form each row's smallest set of the most probable whose share reaches `top_p`.

    Args:
        weights: float32[num_rows, vocab_size], non-negative, not necessarily normalised.
        top_p: float32[num_rows]; 1 or more keeps the whole row.

    Returns:
        bool[num_rows, vocab_size]; the most probable token is always in it.
    """
    bits = lax.bitcast_convert_type(weights, jnp.int32)
    wanted = top_p * jnp.sum(weights, axis=-1)

    def keeps_enough(threshold: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(bits >= threshold[:, None], weights, 0.0), axis=-1) >= wanted

    threshold = _search_low_bits(jnp.zeros(wanted.shape, jnp.int32), keeps_enough)
    # Rounding may hide even the best token behind a share just above it; it stays in any case.
    threshold = jnp.minimum(threshold, jnp.max(bits, axis=-1))
    return (bits >= threshold[:, None]) | (top_p >= 1.0)[:, None]


def _search_low_bits(start: jax.Array, keeps_enough: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """The largest threshold at or above `start` (int32[num_rows], low 31 bits clear) that keeps enough."""

    def set_bit(i: jax.Array, threshold: jax.Array) -> jax.Array:
        candidate = threshold | (jnp.int32(1) << (30 - i))
        return jnp.where(keeps_enough(candidate), candidate, threshold)

    threshold: jax.Array = lax.fori_loop(0, 31, set_bit, start)
    return threshold


def _ordered_bits(x: jax.Array) -> jax.Array:
    """int32 keys that order as the floats do; +0.0 and -0.0 share one key."""
    bits = lax.bitcast_convert_type(x + 0.0, jnp.int32)
    return jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)
