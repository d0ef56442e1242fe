"""Products of experts in XLA: each expert computes the tokens that pick it, in blocks of a fixed number of rows.

The pairs of a token and an expert are sorted by expert, and each expert's are cut into blocks, the last of which may be
in part empty (as in Gale et al., "MegaBlocks", 2023). How many blocks there are is a run-time value, so that the work
grows with the tokens, and experts that nobody picks are not read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from cache.page import NULL_PAGE_ID
from engine.kernels.interface.norms import of_layer
from engine.kernels.interface.operands import Picks
from engine.kernels.interface.token_layout import TokenLayout

MAX_BLOCK_ROWS = 32


class _Blocks(NamedTuple):
    """Where the blocks of all experts stand among the sorted pairs."""

    order: jax.Array  # int32[num_pairs]: token * num_picked + pick, sorted by expert, those of padding last
    first_pair: jax.Array  # int32[num_experts]: of each expert, in `order`
    end_pair: jax.Array  # int32[num_experts]
    end_block: jax.Array  # int32[num_experts]
    num_rows: int  # of each block


def expert_product(
    x: jax.Array, weights: jax.Array, picks: Picks, layer: jax.Array, layout: TokenLayout,
    finish: Callable[[jax.Array], jax.Array], num_outputs: int,
) -> jax.Array:  # fmt: skip
    """As `Products.expert_product`; `finish` makes [rows, num_outputs] of a block's products."""
    num_tokens, num_picked = picks.experts.shape
    blocks = _blocks(picks, layout)

    def add(rows: jax.Array, products: jax.Array, out: jax.Array) -> jax.Array:
        return out.at[rows].set(finish(products), mode="drop")

    out = jnp.zeros((num_tokens * num_picked, num_outputs), jnp.result_type(x, weights))
    found = _each_block(blocks, x, num_picked, weights, layer * picks.num_experts, add, out)
    return found.reshape(num_tokens, num_picked, num_outputs)


def add_expert_product(
    addend: jax.Array, x: jax.Array, weights: jax.Array, picks: Picks, layer: jax.Array, layout: TokenLayout
) -> jax.Array:
    """As `Products.add_expert_product`."""
    num_picked = picks.experts.shape[1]
    blocks = _blocks(picks, layout)

    def add(rows: jax.Array, products: jax.Array, out: jax.Array) -> jax.Array:
        # A token's pairs follow each other, and no block has two of one token.
        return out.at[rows // num_picked].add(products.astype(out.dtype), mode="drop")

    pairs = x.reshape(-1, x.shape[-1])
    return _each_block(blocks, pairs, 1, weights, layer * picks.num_experts, add, addend)


def _blocks(picks: Picks, layout: TokenLayout) -> _Blocks:
    """Sorts the pairs of real tokens and cuts them into blocks."""
    num_tokens, num_picked = picks.experts.shape
    num_pairs = num_tokens * num_picked
    is_real = layout.write_page != NULL_PAGE_ID
    experts = jnp.where(is_real[:, None], picks.experts, picks.num_experts).reshape(-1)
    counts = jnp.zeros(picks.num_experts, jnp.int32).at[experts].add(1, mode="drop")
    # As many rows as an expert has on average keeps the empty ones below half of all.
    average = max(1, num_pairs // picks.num_experts)
    num_rows = min(MAX_BLOCK_ROWS, num_tokens, 1 << (average - 1).bit_length())
    ends = jnp.cumsum(counts)
    return _Blocks(jnp.argsort(experts), ends - counts, ends, jnp.cumsum(-(-counts // num_rows)), num_rows)


def _each_block(
    blocks: _Blocks, x: jax.Array, pairs_per_row: int, weights: jax.Array, first: jax.Array,
    add: Callable[[jax.Array, jax.Array, jax.Array], jax.Array], out: jax.Array,
) -> jax.Array:  # fmt: skip
    """Adds the products of all blocks to `out`, expert by expert.

    Args:
        x: of every pair or, of `pairs_per_row` pairs each, of every token.
        first: the index of the layer's first expert in the weights.
        add: from the pairs of a block, of which empty ones lie beyond all pairs, its products [rows, …] and `out`.
    """
    num_pairs = blocks.order.shape[0]
    num_blocks_before = blocks.end_block - jnp.diff(blocks.end_block, prepend=0)

    def block(index: jax.Array, out: jax.Array) -> jax.Array:
        expert = jnp.searchsorted(blocks.end_block, index, side="right")
        start = blocks.first_pair[expert] + (index - num_blocks_before[expert]) * blocks.num_rows
        places = start + jnp.arange(blocks.num_rows, dtype=jnp.int32)
        pairs = jnp.where(places < blocks.end_pair[expert], blocks.order[places], num_pairs)
        rows = x[jnp.minimum(pairs, num_pairs - 1) // pairs_per_row]
        return add(pairs, rows @ of_layer(weights, first + expert), out)

    filled: jax.Array = lax.fori_loop(0, blocks.end_block[-1], block, out)
    return filled
