"""Paged attention in portable XLA, which runs everywhere.

The context is walked in blocks of a few pages with a running softmax (Milakov and Gimelshein, "Online normalizer
calculation for softmax", 2018; Dao et al., "FlashAttention", 2022). The range of blocks is a run-time value, so one
program serves every length. Blocks begin at fixed places, so a row's result does not depend on its neighbours.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cache.storage import KVPages
from engine.backends.base.norms import normed, of_layer
from engine.backends.base.operands import AttentionConstants, Norm
from engine.backends.base.token_layout import END, TokenLayout, pages_per_block
from engine.backends.xla.hadamard import hadamard


def attend(
    qkv: jax.Array, kv: KVPages, layer: jax.Array, layout: TokenLayout, constants: AttentionConstants
) -> tuple[jax.Array, KVPages]:
    """As `Attention`; padding tokens write to the null page."""
    num_tokens, num_decode, num_tiles = qkv.shape[0], layout.num_decode_rows, layout.num_tiles
    heads = qkv.reshape(num_tokens, -1, kv.data.shape[5])
    q, k, *values = jnp.split(
        heads, [constants.num_heads + part * kv.num_heads for part in range(kv.num_parts)], axis=1
    )
    q, k = _normed_heads(q, constants.q_norm, layer), _normed_heads(k, constants.k_norm, layer)
    q, k = _rotate(q, layer, constants), _rotate(k, layer, constants)
    if kv.is_transformed:
        q, k, values = hadamard(q).astype(q.dtype), hadamard(k), [hadamard(each) for each in values]
    place, page_table, write_page = _pages_of(layer, layout)
    kv = kv.write(place, write_page, layout.write_offset, k, *values)
    outputs = []
    if num_decode:
        positions, table = layout.positions[:num_decode, None], page_table[:num_decode]
        outputs.append(_attend(q[:num_decode, None], positions, positions, kv, layer, place, table, constants))
    if num_tiles:
        tiles = q[num_decode:].reshape(num_tiles, -1, *q.shape[1:])
        positions, table = layout.positions[num_decode:].reshape(num_tiles, -1), page_table[num_decode:]
        ends = _last_seen(layer, layout, constants)
        outputs.append(_attend(tiles, positions, ends, kv, layer, place, table, constants))
    return jnp.concatenate(outputs), kv


def _pages_of(layer: jax.Array, layout: TokenLayout) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The place of a layer in its pages, and the page table and the pages to write of its group."""
    groups = layout.groups
    if groups is None or layout.write_pages is None:
        return layer, layout.page_table, layout.write_page
    group = jnp.asarray(groups.of_layer, jnp.int32)[layer]
    width = layout.page_table.shape[1] // groups.num_groups
    table = lax.dynamic_slice_in_dim(layout.page_table, group * width, width, axis=1)
    return jnp.asarray(groups.places, jnp.int32)[layer], table, layout.write_pages[group]


def _last_seen(layer: jax.Array, layout: TokenLayout, constants: AttentionConstants) -> jax.Array:
    """The last position that each token of a tile sees: int32[num_tiles, tile_size]."""
    num_decode, num_tiles = layout.num_decode_rows, layout.num_tiles
    positions = layout.positions[num_decode:].reshape(num_tiles, -1)
    if layout.last_seen is not None:
        return layout.last_seen[num_decode:].reshape(positions.shape)
    if constants.is_causal:
        return positions
    of_text = jnp.maximum(layout.rows[num_decode:, END] - 1, 0)  # 0 in padding
    if not constants.windows.any():
        return jnp.broadcast_to(of_text[:, None], positions.shape)
    window = jnp.asarray(constants.windows)[layer]
    return jnp.where(window > 0, jnp.minimum(positions + window - 1, of_text[:, None]), of_text[:, None])


def _normed_heads(x: jax.Array, norm: Norm | None, layer: jax.Array) -> jax.Array:
    """[num_tokens, num_heads, head_dim], each head normed by itself, or all of a token's at once."""
    if norm is None or norm.weight.shape[-1] == x.shape[-1]:
        return normed(x, norm, layer)
    return normed(x.reshape(x.shape[0], -1), norm, layer).reshape(x.shape)


def _rotate(x: jax.Array, layer: jax.Array, constants: AttentionConstants) -> jax.Array:
    """Rotates the first rotary_dim features of each head of x, [num_tokens, num_heads, head_dim] (Su et al., 2021)."""
    tables = np.unique(constants.tables)
    if tables[-1] < 0:
        return x
    if len(tables) == 1:
        rotations = constants.rotations[int(tables[0])]
    else:
        table = jnp.asarray(constants.tables)[layer]
        rotations = lax.dynamic_index_in_dim(constants.rotations, jnp.maximum(table, 0), keepdims=False)
    rotary_dim = rotations.shape[-1]
    cos, sin = jnp.split(rotations[:, None], 2, axis=-1)
    first, second = jnp.split(x[..., :rotary_dim].astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
    rotated = turned if rotary_dim == x.shape[-1] else jnp.concatenate([turned, x[..., rotary_dim:]], axis=-1)
    return rotated if tables[0] >= 0 else jnp.where(table < 0, x, rotated)


def _attend(
    q: jax.Array, positions: jax.Array, ends: jax.Array, kv: KVPages, layer: jax.Array, place: jax.Array,
    table: jax.Array, constants: AttentionConstants,
) -> jax.Array:  # fmt: skip
    """Attention of rows of equal width for q, [num_rows, width, num_heads, head_dim].

    Each query sees keys up to the position in `ends`, as far back as the layer's window reaches.
    """
    num_rows, width, num_heads, head_dim = q.shape
    num_kv_heads = kv.num_heads
    group = num_heads // num_kv_heads  # query heads that share a key head
    num_pages = pages_per_block(kv.page_size)
    block_size = num_pages * kv.page_size

    # [num_rows, num_kv_heads, group * width, head_dim]: a key head's queries side by side.
    queries = q.reshape(num_rows, width, num_kv_heads, group, head_dim).transpose(0, 2, 3, 1, 4)
    queries = queries.reshape(num_rows, num_kv_heads, group * width, head_dim) * constants.scale
    last_positions = jnp.max(ends, axis=1, keepdims=True)
    query_positions, query_ends = (jnp.tile(each, (1, group))[:, None, :, None] for each in (positions, ends))
    first_seen = _first_seen(query_positions, layer, constants)
    first_positions = _first_seen(positions[:, :1], layer, constants)  # of a row's first token
    slopes = None
    if constants.distance_slopes is not None:
        by_group = constants.distance_slopes.reshape(num_kv_heads, group)
        slopes = jnp.asarray(np.repeat(by_group, width, axis=1)[None, :, :, None])

    def block(index: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        best, total, acc = carry
        pages = lax.dynamic_slice_in_dim(table, index * num_pages, num_pages, axis=1)
        keys, values = kv.read(place, pages, q.dtype)
        scores = jnp.einsum("rhqd,rhkd->rhqk", queries, keys, preferred_element_type=jnp.float32)
        if constants.softcap:
            scores = constants.softcap * jnp.tanh(scores / constants.softcap)
        key_positions = index * block_size + jnp.arange(block_size)
        if slopes is not None:
            scores += _biases(slopes, query_positions, key_positions, constants)
        # What the row does not see may be anything: 0 times a NaN that another request left is a NaN.
        is_real = key_positions <= last_positions
        if first_positions is not None:
            is_real &= key_positions >= first_positions
        values = jnp.where(is_real[:, None, :, None], values, 0)
        is_seen = key_positions <= query_ends
        if first_seen is not None:
            is_seen &= key_positions >= first_seen
        scores = jnp.where(is_seen, scores, -jnp.inf)
        new_best = jnp.maximum(best, jnp.max(scores, axis=-1, keepdims=True))
        weights = jnp.exp(scores - new_best)
        shrink = jnp.exp(best - new_best)
        mixed = jnp.einsum("rhqk,rhkd->rhqd", weights.astype(q.dtype), values, preferred_element_type=jnp.float32)
        return new_best, total * shrink + jnp.sum(weights, axis=-1, keepdims=True), acc * shrink + mixed

    shape = (num_rows, num_kv_heads, group * width)
    # `best` is finite from the start: a query may see nothing of the first blocks.
    start = (
        jnp.full((*shape, 1), float(np.finfo(np.float32).min)),
        jnp.zeros((*shape, 1), jnp.float32),
        jnp.zeros((*shape, head_dim), jnp.float32),
    )
    num_blocks = jnp.max(ends) // block_size + 1
    first_block = 0 if first_seen is None else jnp.maximum(jnp.min(first_seen), 0) // block_size
    best, total, acc = lax.fori_loop(first_block, num_blocks, block, start)
    if constants.sinks is not None:
        of_heads = of_layer(constants.sinks, layer).astype(jnp.float32).reshape(num_kv_heads, group)
        sinks = jnp.repeat(of_heads, width, axis=1)[None, :, :, None]
        most = jnp.maximum(best, sinks)
        kept = jnp.exp(best - most)
        total, acc = total * kept + jnp.exp(sinks - most), acc * kept
    mixed: jax.Array = acc / total
    if kv.is_transformed:
        mixed = hadamard(mixed)
    mixed = mixed.astype(q.dtype).reshape(num_rows, num_kv_heads, group, width, head_dim)
    return mixed.transpose(0, 3, 1, 2, 4).reshape(num_rows * width, num_heads * head_dim)


def _biases(
    slopes: jax.Array, query_positions: jax.Array, key_positions: jax.Array, constants: AttentionConstants
) -> jax.Array:
    """What scores change by with distance (Press et al., "Train Short, Test Long", 2021)."""
    if not constants.rounds_biases:
        return -slopes * jnp.abs(query_positions - key_positions)
    rounded = _as_bfloat16(_as_bfloat16(slopes) * _as_bfloat16(key_positions.astype(jnp.float32)))
    return rounded * constants.scale


def _as_bfloat16(x: jax.Array) -> jax.Array:
    """Rounded, which XLA may leave out where it is a conversion there and back."""
    return lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


def _first_seen(positions: jax.Array, layer: jax.Array, constants: AttentionConstants) -> jax.Array | None:
    """The first position that each query's window holds, perhaps negative; None where no layer has a window."""
    if not constants.windows.any():
        return None
    window = jnp.asarray(constants.windows)[layer]
    return jnp.where(window > 0, positions - window + 1, 0)
