"""Ragged paged attention as a function of JAX arrays."""

from __future__ import annotations

from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from cache.storage import KVPages
from engine.kernels.native.library import target

Array: TypeAlias = jax.Array | np.ndarray

HEAD_MULTIPLE = 16  # the size of a head is a multiple of it
LARGEST_HEAD = 256  # features


def attention(
    qkv: Array, rotations: Array, tables: Array, windows: Array, q_norm: Array, k_norm: Array,
    rows: Array, page_table: Array, layer: Array, kv: KVPages, *,
    num_heads: int, num_tiles: int, scale: float, softcap: float = 0.0, epsilon: float,
) -> tuple[jax.Array, KVPages]:  # fmt: skip
    """Norms and rotates queries and keys, writes keys and values into their pages, and attends causally.

    A norm is an RMS norm with `epsilon` (Zhang and Sennrich, 2019) and comes before the rotation. A rotation is that of
    Su et al., "RoFormer", 2021: of each head's first rotary_dim features, feature i is paired with i + rotary_dim / 2;
    the features behind them pass through.

    Args:
        qkv: float32[num_tokens, (num_heads + 2 * num_kv_heads) * head_dim].
        rotations: float32[num_tables, num_tokens, rotary_dim], cosines and then sines of rotary_dim / 2 angles each.
        tables: int32[num_layers], which of the rotations a layer uses; -1 where a layer does not rotate.
        windows: int32[num_layers], how many tokens up to and with its own a query sees in a layer; 0 for all.
        q_norm: float32[num_layers, head_dim] where each head is normed by itself, [num_layers, num_heads * head_dim]
            where all heads are normed as one vector, or empty.
        k_norm: the same of the keys, of num_kv_heads heads.
        rows: int32[num_rows, columns] of a step, whose first two columns are a row's start and its number of tokens.
        page_table: int32[num_rows, max_pages].
        layer: int32 scalar.
        kv: the pages of all layers, updated in place.
        num_tiles: how many of the rows, the last ones, are tiles.
        scale: what the scores are multiplied with.
        softcap: scores become softcap * tanh(score / softcap); 0 leaves them as they are.

    Returns:
        float32[num_tokens, num_heads * head_dim], and kv.

    Raises:
        ValueError: a size does not fit, as the message says: heads have 16, 32, ... 256 features, of which an even
            number is rotated.
    """
    head_dim = kv.data.shape[5]
    if rotations.shape[0] != 1 or rotations.shape[2] != head_dim or q_norm.size or k_norm.size or softcap:
        raise NotImplementedError
    if scale != head_dim**-0.5:
        raise NotImplementedError
    window = 0
    if isinstance(windows, np.ndarray):
        (window,) = set(windows.tolist())
    scales = jnp.zeros(0, jnp.float32) if kv.scales is None else kv.scales
    out = jax.ShapeDtypeStruct((qkv.shape[0], num_heads * head_dim), jnp.float32)
    pages = jax.ShapeDtypeStruct(kv.data.shape, kv.data.dtype), jax.ShapeDtypeStruct(scales.shape, scales.dtype)
    call = jax.ffi.ffi_call(target("attention"), (out, *pages), input_output_aliases={5: 1, 6: 2})
    attended, data, scales = call(
        qkv, rotations[0], rows, page_table, layer, kv.data, scales, num_tiles=num_tiles, window=window
    )
    return attended, KVPages(data, None if kv.scales is None else scales)
