"""XTC, "exclude top choices" (p-e-w, text-generation-webui, 2024)."""

import jax
import jax.numpy as jnp


def xtc_mask(weights: jax.Array, probability: jax.Array, threshold: jax.Array, uniform: jax.Array) -> jax.Array:
    """Which tokens are left: of those that reach the threshold the least probable alone, of equals the largest id.

    A row is filtered where `uniform`, a random number in [0, 1), is below `probability`.
    """
    total = jnp.sum(weights, axis=-1, keepdims=True)
    is_top = (weights >= threshold[:, None] * total) & (weights > 0.0)
    least = jnp.min(jnp.where(is_top, weights, jnp.inf), axis=-1, keepdims=True)
    token_ids = jnp.arange(weights.shape[-1])
    spared = jnp.max(jnp.where(is_top & (weights == least), token_ids, -1), axis=-1, keepdims=True)
    return ~is_top | (token_ids == spared) | (uniform >= probability)[:, None]
