"""min-p (Nguyen et al., "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs", 2024)."""

import jax
import jax.numpy as jnp


def min_p_mask(scaled: jax.Array, min_p: jax.Array) -> jax.Array:
    """Which tokens have at least `min_p` times the probability of the best, which is 0 in `scaled`; 0 keeps all."""
    return scaled >= jnp.log(min_p)[:, None]
