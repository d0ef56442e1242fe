"""top-p, nucleus sampling (Holtzman et al., "The Curious Case of Neural Text Degeneration", 2019)."""

import jax
import jax.numpy as jnp
from jax import lax

from sampling.filters.threshold import largest_threshold


def top_p_mask(weights: jax.Array, top_p: jax.Array) -> jax.Array:
    """Which tokens form each row's smallest set of the most probable with a share of `top_p`; 1 or more keeps all."""
    bits = lax.bitcast_convert_type(weights, jnp.int32)
    wanted = top_p * jnp.sum(weights, axis=-1)
    threshold = largest_threshold(
        lambda candidate: jnp.sum(jnp.where(bits >= candidate[:, None], weights, 0.0), axis=-1) >= wanted,
        jnp.zeros(wanted.shape, jnp.int32),
    )
    # Rounding may hide even the best token behind a share just above it; it stays in any case.
    threshold = jnp.minimum(threshold, jnp.max(bits, axis=-1))
    return (bits >= threshold[:, None]) | (top_p >= 1.0)[:, None]
