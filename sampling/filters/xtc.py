"""XTC, "exclude top choices" (p-e-w, text-generation-webui, 2024)."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def xtc_mask(weights: jax.Array, probability: jax.Array, threshold: jax.Array, uniform: jax.Array) -> jax.Array:
    """Which tokens are left: where several reach the threshold, of those the least probable alone.

    Of equally probable ones the one with the largest id counts as the least.

    Args:
        weights: float32[num_rows, vocab_size], non-negative, not necessarily normalised.
        probability: float32[num_rows], of filtering the row at all.
        threshold: float32[num_rows], the probability from which on a token is a top choice.
        uniform: float32[num_rows] in [0, 1), the random number for `probability`.
    """
    total = jnp.sum(weights, axis=-1, keepdims=True)
    is_top = (weights >= threshold[:, None] * total) & (weights > 0.0)
    least = jnp.min(jnp.where(is_top, weights, jnp.inf), axis=-1, keepdims=True)
    token_ids = jnp.arange(weights.shape[-1])
    spared = jnp.max(jnp.where(is_top & (weights == least), token_ids, -1), axis=-1, keepdims=True)
    return ~is_top | (token_ids == spared) | (uniform >= probability)[:, None]
