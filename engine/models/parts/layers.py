"""What the forward passes of architectures share."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from cache.storage import KVPages
from engine.kernels.interface import norms

Carry = tuple[jax.Array, KVPages]

normed = norms.normed  # outside a product, as after the blocks of Gemma 2; a norm before a product belongs to it


def run_layers(layer: Callable[[jax.Array, Carry], Carry], num_layers: int, hidden: jax.Array, kv: KVPages) -> Carry:
    """What the last layer makes of [num_tokens, hidden], and kv; each layer is told its index, an int32 scalar."""
    carry: Carry = lax.fori_loop(0, num_layers, layer, (hidden, kv))
    return carry


def sum_of_experts(
    x: jax.Array, shares: jax.Array, layer: jax.Array, expert: Callable[[jax.Array, jax.Array], jax.Array]
) -> jax.Array:
    """What the picked experts of a layer make of each token, weighed by the router (Shazeer et al., 2017).

    An expert that no token picks is neither read nor computed; one that is picked computes all tokens.

    Args:
        x: [num_tokens, hidden], normed.
        shares: [num_tokens, num_experts], the router's weights; 0 where a token does not pick the expert.
        expert: of x and an index into the stacks of leaves with experts: [num_tokens, hidden].

    Returns:
        [num_tokens, hidden].
    """
    num_experts = shares.shape[1]

    def add(number: jax.Array, total: jax.Array) -> jax.Array:
        share = lax.dynamic_index_in_dim(shares, number, axis=1).astype(x.dtype)

        def added() -> jax.Array:
            return total + jnp.where(share != 0, share * expert(x, layer * num_experts + number), 0)

        chosen: jax.Array = lax.cond((share != 0).any(), added, lambda: total)
        return chosen

    total: jax.Array = lax.fori_loop(0, num_experts, add, jnp.zeros_like(x))
    return total
