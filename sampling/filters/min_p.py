"""min-p (Nguyen et al., "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs", 2024)."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def min_p_mask(scaled: jax.Array, min_p: jax.Array) -> jax.Array:
    """Which tokens have at least `min_p` times the probability of the best one; min_p 0 keeps all.

    Args:
        scaled: float32[num_rows, vocab_size], logits over temperature, 0 for the best token.
    """
    return scaled >= jnp.log(min_p)[:, None]
