"""Paged attention: the native kernel where it was chosen, or portable XLA, which runs everywhere.

In XLA the context is walked in blocks of a few pages with a running softmax (Milakov and Gimelshein,
"Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022). The number
of blocks is a run-time value, the longest context of the step, so one program serves every
length, and a row's result does not depend on its neighbours: blocks past its own end add exact
zeros.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cache.page import NULL_PAGE_ID
from cache.storage import KVPages
from engine.kernels.native import attention as native
from engine.step.batch import NUM_TOKENS, START, StepBatch

BLOCK_SIZE = 128  # tokens of context that are gathered at a time


def pages_per_block(page_size: int) -> int:
    """Pages gathered at a time; page tables are padded to a multiple of this."""
    return max(1, BLOCK_SIZE // page_size)


class TokenLayout(NamedTuple):
    """Where each token of a step stands; the same for all layers."""

    positions: jax.Array  # int32[num_tokens]
    write_page: jax.Array  # int32[num_tokens]; the null page for padding
    write_offset: jax.Array  # int32[num_tokens], within the page
    decode_table: jax.Array  # int32[num_decode_rows, max_pages]
    tile_table: jax.Array  # int32[num_tiles, max_pages]
    rows: jax.Array  # int32[num_decode_rows + num_tiles, NUM_ROW_INTS], as in the batch
    page_table: jax.Array  # int32[num_decode_rows + num_tiles, max_pages]
    is_native: bool  # which body attention has; static

    @property
    def num_tiles(self) -> int:
        return self.tile_table.shape[0]


def token_layout(batch: StepBatch, page_size: int, *, is_native: bool) -> TokenLayout:
    """Spreads a batch's rows over its tokens: one for each decode row, then the tiles' tokens."""
    num_tiles, tile_size = batch.tile_tokens.shape
    num_decode = batch.rows.shape[0] - num_tiles
    rows, table = jnp.asarray(batch.rows), jnp.asarray(batch.page_table)
    within = jnp.concatenate([jnp.zeros(num_decode, jnp.int32), jnp.tile(jnp.arange(tile_size), num_tiles)])
    row = jnp.concatenate([jnp.arange(num_decode), num_decode + jnp.repeat(jnp.arange(num_tiles), tile_size)])
    positions = rows[row, START] + within
    is_real = within < rows[row, NUM_TOKENS]
    # A padding position may lie past the table's end, where the gather would clamp to a real page.
    page = jnp.where(is_real, table[row, positions // page_size], NULL_PAGE_ID)
    return TokenLayout(
        positions=jnp.where(is_real, positions, 0),
        write_page=page,
        write_offset=positions % page_size,
        decode_table=table[:num_decode],
        tile_table=table[num_decode:],
        rows=rows,
        page_table=table,
        is_native=is_native,
    )


def attend(
    qkv: jax.Array, rotations: jax.Array, kv: KVPages, layer: jax.Array, layout: TokenLayout, *, num_heads: int
) -> tuple[jax.Array, KVPages]:
    """Rotates queries and keys, writes keys and values into their pages, and attends causally.

    Args:
        qkv: [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim].
        rotations: float32[num_tokens, head_dim], cosines and then sines.
        kv: the pages of all layers, updated in place.
        layer: int32 scalar, the index into kv.

    Returns:
        [num_tokens, num_heads * head_dim], and kv.
    """
    if layout.is_native:
        of_layers, nothing = jnp.zeros(kv.data.shape[0], jnp.int32), jnp.zeros(0, jnp.float32)
        attended, kv = native.attention(
            qkv.astype(jnp.float32), rotations[None], of_layers, of_layers, nothing, nothing,
            layout.rows, layout.page_table, layer, kv,
            num_heads=num_heads, num_tiles=layout.num_tiles, scale=kv.data.shape[5] ** -0.5, epsilon=0.0,
        )  # fmt: skip
        return attended.astype(qkv.dtype), kv
    heads = qkv.reshape(qkv.shape[0], -1, kv.data.shape[5])
    q, k, v = jnp.split(heads, [num_heads, num_heads + kv.num_heads], axis=1)
    return paged_attention(_rotate(q, rotations), _rotate(k, rotations), v, kv, layer, layout)


def _rotate(x: jax.Array, rotations: jax.Array) -> jax.Array:
    """Su et al., "RoFormer", 2021; feature i is paired with feature i + head_dim / 2.

    Args:
        x: [num_tokens, num_heads, head_dim].
    """
    cos, sin = jnp.split(rotations[:, None], 2, axis=-1)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)


def paged_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, kv: KVPages, layer: jax.Array, layout: TokenLayout
) -> tuple[jax.Array, KVPages]:
    """Writes the step's keys and values into their pages, then attends causally through page tables.

    Args:
        q: [num_tokens, num_heads, head_dim].
        k, v: [num_tokens, num_kv_heads, head_dim].
        kv: the pages of all layers, updated in place.
        layer: int32 scalar, the index into kv.

    Returns:
        [num_tokens, num_heads * head_dim], and kv.
    """
    num_decode, num_tiles = layout.decode_table.shape[0], layout.tile_table.shape[0]
    kv = kv.write(layer, layout.write_page, layout.write_offset, k, v)
    outputs = []
    if num_decode:
        positions = layout.positions[:num_decode, None]
        outputs.append(_attend(q[:num_decode, None], positions, kv, layer, layout.decode_table))
    if num_tiles:
        tiles = q[num_decode:].reshape(num_tiles, -1, *q.shape[1:])
        positions = layout.positions[num_decode:].reshape(num_tiles, -1)
        outputs.append(_attend(tiles, positions, kv, layer, layout.tile_table))
    return jnp.concatenate(outputs), kv


def _attend(q: jax.Array, positions: jax.Array, kv: KVPages, layer: jax.Array, table: jax.Array) -> jax.Array:
    """Attention of rows of equal width.

    Args:
        q: [num_rows, width, num_heads, head_dim].
        positions: int32[num_rows, width]; each query sees keys at its position and before.
        table: int32[num_rows, max_pages].

    Returns:
        [num_rows * width, num_heads * head_dim].
    """
    num_rows, width, num_heads, head_dim = q.shape
    num_kv_heads = kv.num_heads
    group = num_heads // num_kv_heads  # query heads that share a key head
    num_pages = pages_per_block(kv.page_size)
    block_size = num_pages * kv.page_size

    # [num_rows, num_kv_heads, group * width, head_dim]: a key head's queries side by side.
    queries = q.reshape(num_rows, width, num_kv_heads, group, head_dim).transpose(0, 2, 3, 1, 4)
    queries = queries.reshape(num_rows, num_kv_heads, group * width, head_dim) * head_dim**-0.5
    last_positions = jnp.max(positions, axis=1, keepdims=True)
    query_positions = jnp.tile(positions, (1, group))[:, None, :, None]

    def block(index: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        best, total, acc = carry
        pages = lax.dynamic_slice_in_dim(table, index * num_pages, num_pages, axis=1)
        keys, values = kv.read(layer, pages, q.dtype)
        scores = jnp.einsum("rhqd,rhkd->rhqk", queries, keys, preferred_element_type=jnp.float32)
        key_positions = index * block_size + jnp.arange(block_size)
        # What the row does not see may be anything: 0 times a NaN that another request left is a NaN.
        values = jnp.where((key_positions <= last_positions)[:, None, :, None], values, 0)
        scores = jnp.where(key_positions <= query_positions, scores, -jnp.inf)
        new_best = jnp.maximum(best, jnp.max(scores, axis=-1, keepdims=True))
        weights = jnp.exp(scores - new_best)
        shrink = jnp.exp(best - new_best)
        mixed = jnp.einsum("rhqk,rhkd->rhqd", weights.astype(q.dtype), values, preferred_element_type=jnp.float32)
        return new_best, total * shrink + jnp.sum(weights, axis=-1, keepdims=True), acc * shrink + mixed

    shape = (num_rows, num_kv_heads, group * width)
    # Position 0 is in the first block and visible to every query, so `best` is finite after it.
    start = (
        jnp.full((*shape, 1), float(np.finfo(np.float32).min)),
        jnp.zeros((*shape, 1), jnp.float32),
        jnp.zeros((*shape, head_dim), jnp.float32),
    )
    num_blocks = jnp.max(positions) // block_size + 1
    _, total, acc = lax.fori_loop(0, num_blocks, block, start)
    mixed: jax.Array = (acc / total).astype(q.dtype).reshape(num_rows, num_kv_heads, group, width, head_dim)
    return mixed.transpose(0, 3, 1, 2, 4).reshape(num_rows * width, num_heads * head_dim)
