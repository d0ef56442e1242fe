"""top-k: the k best tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from sampling.filters.threshold import largest_threshold, ordered_bits


def top_k_mask(logits: jax.Array, top_k: jax.Array) -> jax.Array:
    """Which tokens are among each row's `top_k` best; what ties with the last of them is, too.

    Args:
        logits: float32[num_rows, vocab_size].
        top_k: int32[num_rows]; values below 1 keep the whole row.

    Returns:
        bool[num_rows, vocab_size].
    """
    keys = ordered_bits(logits)
    k = jnp.where(top_k < 1, logits.shape[-1], top_k)

    def keeps_enough(threshold: jax.Array) -> jax.Array:
        return jnp.sum(keys >= threshold[:, None], axis=-1, dtype=jnp.int32) >= k

    # The sign bit of two's complement counts downwards, so it is decided first.
    lowest = jnp.full(k.shape, -(2**31), jnp.int32)
    start = jnp.where(keeps_enough(jnp.zeros_like(lowest)), 0, lowest)
    threshold = largest_threshold(keeps_enough, start)
    return (keys >= threshold[:, None]) | (top_k < 1)[:, None]
