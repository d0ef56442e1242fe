"""Mixtures of experts: one expert after the other, each for the tokens that pick it.

To the kernels, the tokens that do not pick an expert are padding, which they neither read nor write: so the work grows
with the tokens, and the sum of a token's experts is added up in place, in the order of their numbers.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cache.page import NULL_PAGE_ID
from engine.kernels.interface.operands import Activation, NormKind, Picks
from engine.kernels.interface.token_layout import TokenLayout
from engine.kernels.native import products
from engine.weights.packing import PackedMatrix

_NOTHING = np.zeros(0, np.float32)  # in place of a norm or a bias


def add_experts(
    addend: jax.Array, x: jax.Array, gate_up: PackedMatrix, down: PackedMatrix, picks: Picks, layer: jax.Array,
    layout: TokenLayout, *, activation: Activation,
) -> jax.Array:  # fmt: skip
    """As `Products.add_experts`, in place of the addend."""
    num_experts = picks.num_experts
    is_real = layout.write_page != NULL_PAGE_ID
    experts = jnp.where(is_real[:, None], picks.experts, num_experts)
    counts = jnp.zeros(num_experts, jnp.int32).at[experts.reshape(-1)].add(1, mode="drop")
    picked_first = jnp.argsort(counts == 0, stable=True)

    def one(index: jax.Array, total: jax.Array) -> jax.Array:
        expert = picked_first[index]
        is_pick = experts == expert
        # Every token is a row of its own: its start, which products do not read, and whether it is there.
        rows = jnp.stack([jnp.zeros_like(layout.positions), is_pick.any(axis=1).astype(jnp.int32)], axis=1)
        place = layer * num_experts + expert
        inner = products.norm_product(
            x, rows, place, _NOTHING, _NOTHING, gate_up, _NOTHING,
            norm_kind=NormKind.NONE, epsilon=0.0, activation=activation, is_gated=True, num_tiles=0,
        )  # fmt: skip
        # A share may multiply what goes into a product as well as what comes out of it.
        weighed = inner * jnp.where(is_pick, picks.shares, 0).sum(axis=1, keepdims=True)
        return products.add_product(total, weighed, rows, place, down, _NOTHING, num_tiles=0)

    added: jax.Array = lax.fori_loop(0, jnp.count_nonzero(counts), one, addend)
    return added
