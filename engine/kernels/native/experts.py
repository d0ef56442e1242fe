"""Products of experts, one expert after the other by the products that all matrices have."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from engine.kernels.interface.operands import Picks


def each_expert(
    picks: Picks, layer: jax.Array, start: jax.Array, add: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
) -> jax.Array:
    """What is added to `start` by each expert of a layer that some token picks.

    Args:
        add: from an expert's place in the stacks, bool[num_tokens, num_picked] of its picks, and the sum so far.
    """

    def one(number: jax.Array, total: jax.Array) -> jax.Array:
        picked = picks.experts == number
        place = layer * picks.num_experts + number
        added: jax.Array = lax.cond(picked.any(), lambda: add(place, picked, total), lambda: total)
        return added

    total: jax.Array = lax.fori_loop(jnp.int32(0), picks.num_experts, one, start)
    return total
