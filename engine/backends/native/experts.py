"""Mixtures of experts: one call a layer, in which the rows of all experts share the threads."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from engine.backends.base.operands import Activation, Picks
from engine.backends.base.token_layout import TokenLayout
from engine.backends.native.library import target
from engine.backends.native.products import places_of
from engine.weights.packing import PackedMatrix


def add_experts(
    addend: jax.Array, x: jax.Array, gate_up: PackedMatrix, down: PackedMatrix, picks: Picks, layer: jax.Array,
    layout: TokenLayout, *, activation: Activation,
) -> jax.Array:  # fmt: skip
    """As `Products.add_experts`, in place of the addend; padding tokens are neither read nor written.

    A token's experts are added up in the order of their numbers, so that a row alone equals the row in a batch.
    """
    out = jax.ShapeDtypeStruct(addend.shape, jnp.float32)
    call = jax.ffi.ffi_call(target("add_experts"), out, input_output_aliases={0: 0})
    total: jax.Array = call(
        addend, x, layout.rows, layer, picks.experts.astype(jnp.int32), picks.shares.astype(jnp.float32),
        gate_up.blocks, places_of(gate_up), down.blocks, places_of(down),
        num_tiles=layout.num_tiles, gate_up_tiles=np.array(gate_up.placement.tiles, np.int64),
        down_tiles=np.array(down.placement.tiles, np.int64), num_inputs=gate_up.num_inputs,
        num_inner=down.num_inputs, num_experts=picks.num_experts, activation=int(activation),
    )  # fmt: skip
    return total
