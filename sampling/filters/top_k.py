"""top-k: the k best tokens."""

import jax
import jax.numpy as jnp

from sampling.filters.threshold import largest_threshold, ordered_bits


def top_k_mask(logits: jax.Array, top_k: jax.Array) -> jax.Array:
    """Which tokens of float32[num_rows, vocab_size] are among the `top_k` best, ties included; below 1 keeps all."""
    keys = ordered_bits(logits)
    k = jnp.where(top_k < 1, logits.shape[-1], top_k)

    def keeps_enough(threshold: jax.Array) -> jax.Array:
        return jnp.sum(keys >= threshold[:, None], axis=-1, dtype=jnp.int32) >= k

    # The sign bit of two's complement counts downwards, so it is decided first.
    lowest = jnp.full(k.shape, -(2**31), jnp.int32)
    start = jnp.where(keeps_enough(jnp.zeros_like(lowest)), 0, lowest)
    threshold = largest_threshold(keeps_enough, start)
    return (keys >= threshold[:, None]) | (top_k < 1)[:, None]
