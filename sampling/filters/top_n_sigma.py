"""top-nσ (Tang et al., "Top-nσ: Not All Logits Are You Need", 2024)."""

import jax
import jax.numpy as jnp


def top_n_sigma_mask(logits: jax.Array, top_n_sigma: jax.Array) -> jax.Array:
    """Which tokens lie within so many standard deviations below the best; top_n_sigma 0 keeps all.

    The deviation is that of the population of logits that are not banned; temperature changes nothing here.
    """
    is_left = logits > -jnp.inf
    count = jnp.maximum(jnp.sum(is_left, axis=-1, keepdims=True), 1)
    mean = jnp.sum(jnp.where(is_left, logits, 0.0), axis=-1, keepdims=True) / count
    variance = jnp.sum(jnp.where(is_left, (logits - mean) ** 2, 0.0), axis=-1, keepdims=True) / count
    lowest = jnp.max(logits, axis=-1, keepdims=True) - top_n_sigma[:, None] * jnp.sqrt(variance)
    return (logits >= lowest) | (top_n_sigma <= 0.0)[:, None]
