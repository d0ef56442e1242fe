"""Locally typical sampling (Meister et al., 2022)."""

import jax
import jax.numpy as jnp
from jax import lax

from sampling.filters.threshold import largest_threshold

_MOST = 0x7FFFFFFF


def typical_p_mask(weights: jax.Array, typical_p: jax.Array) -> jax.Array:
    """Which tokens form each row's smallest set of the most typical with a share of `typical_p`; 1 or more keeps all.

    A typical token's surprise is close to the entropy. Tokens that tie with the last one kept are kept with it.
    """
    total = jnp.sum(weights, axis=-1, keepdims=True)
    probability = weights / total
    is_left = probability > 0.0  # of a tiny weight it may be 0, which has no surprise
    surprise = -jnp.log(jnp.where(is_left, probability, 1.0))
    entropy = jnp.sum(probability * surprise, axis=-1, keepdims=True)
    # Distances are not negative, so their bits order as they do; the closest gets the largest key.
    distance = jnp.where(is_left, jnp.abs(surprise - entropy), jnp.inf)
    keys = _MOST - lax.bitcast_convert_type(distance, jnp.int32)
    wanted = typical_p * total[:, 0]
    threshold = largest_threshold(
        lambda candidate: jnp.sum(jnp.where(keys >= candidate[:, None], weights, 0.0), axis=-1) >= wanted,
        jnp.zeros(wanted.shape, jnp.int32),
    )
    threshold = jnp.minimum(threshold, jnp.max(keys, axis=-1))
    return (keys >= threshold[:, None]) | (typical_p >= 1.0)[:, None]
