"""Mixtures of experts in XLA: each expert computes its tokens in blocks of a fixed number of rows.

Pairs of a token and an expert are sorted by expert and cut into blocks (as in Gale et al., "MegaBlocks", 2023). The
number of blocks is a run-time value, so that experts without tokens are not read.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from cache.page import NULL_PAGE_ID
from engine.backends.base.norms import biased, of_layer
from engine.backends.base.operands import ExpertBiases, Picks
from engine.backends.base.token_layout import TokenLayout

MAX_BLOCK_ROWS = 32


def add_experts(
    addend: jax.Array, x: jax.Array, gate_up: jax.Array, down: jax.Array, picks: Picks, layer: jax.Array,
    layout: TokenLayout, finished: Callable[[jax.Array], jax.Array], biases: ExpertBiases | None = None,
) -> jax.Array:  # fmt: skip
    """As `Products.add_experts`; `finished` makes [rows, inner] of a block's gates and ups."""
    num_tokens, num_picked = picks.experts.shape
    num_pairs, num_experts = num_tokens * num_picked, picks.num_experts
    # As many rows as an expert has on average, and at least one, keep the rows that are empty below half of all.
    average = max(1, num_pairs // num_experts)
    num_rows = min(MAX_BLOCK_ROWS, num_tokens, 1 << (average - 1).bit_length())

    is_real = layout.write_page != NULL_PAGE_ID
    experts = jnp.where(is_real[:, None], picks.experts, num_experts).reshape(-1)
    order = jnp.argsort(experts)  # those of padding last
    counts = jnp.zeros(num_experts, jnp.int32).at[experts].add(1, mode="drop")
    end_pairs = jnp.cumsum(counts)
    num_blocks = -(-counts // num_rows)
    end_blocks = jnp.cumsum(num_blocks)
    shares = picks.shares.reshape(-1, 1)

    def block(index: jax.Array, total: jax.Array) -> jax.Array:
        expert = jnp.searchsorted(end_blocks, index, side="right")
        number = index - (end_blocks[expert] - num_blocks[expert])  # among the expert's blocks
        place = end_pairs[expert] - counts[expert] + number * num_rows + jnp.arange(num_rows)
        pair = jnp.where(place < end_pairs[expert], order[place], num_pairs)  # beyond all where it is empty
        token, stacked = pair // num_picked, layer * num_experts + expert
        inner = finished(
            biased(x[token] @ of_layer(gate_up, stacked), None if biases is None else biases.gate_up, stacked)
        )
        # A share may multiply what goes into a product as well as what comes out of it.
        weighed = (inner * shares[pair]).astype(inner.dtype)
        made = weighed @ of_layer(down, stacked)
        if biases is not None:
            made = made + (of_layer(biases.down, stacked) * shares[pair]).astype(made.dtype)
        # No block has two pairs of one token.
        return total.at[token].add(made.astype(total.dtype), mode="drop")

    added: jax.Array = lax.fori_loop(0, end_blocks[-1], block, addend)
    return added
