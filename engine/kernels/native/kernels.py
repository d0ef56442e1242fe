"""The native kernels as functions of JAX arrays.

Weights are whole stacks over layers, and an index says which layer: no slice is ever made. Rows
of tokens that are padding are neither read nor written, so they hold whatever was there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from cache.storage import KVPages
from engine.kernels.native.library import target
from engine.weights.packing import PackedMatrix


def norm_product(
    x: jax.Array, rows: jax.Array, layer: jax.Array, norm: jax.Array, weights: PackedMatrix, *,
    epsilon: float, num_tiles: int, is_gated: bool = False,
) -> jax.Array:  # fmt: skip
    """rms_norm(x) @ weights[layer]ᵀ; gated: silu(gate) * up, where the matrix has their tiles in turn.

    Args:
        x: float32[num_tokens, inputs].
        rows: int32[num_rows, columns] of a step, of which the first two are start and number of tokens.
        layer: int32 scalar.
        norm: float32[num_layers, inputs].
        num_tiles: how many of the rows, the last ones, are tiles.

    Returns:
        float32[num_tokens, outputs], half the outputs when gated.
    """
    num_outputs = weights.num_outputs // 2 if is_gated else weights.num_outputs
    call = jax.ffi.ffi_call(target("norm_product"), jax.ShapeDtypeStruct((x.shape[0], num_outputs), jnp.float32))
    product: jax.Array = call(
        x, rows, layer, norm, weights.blocks,
        num_tiles=num_tiles, format=int(weights.format),
        epsilon=np.float32(epsilon), is_gated=is_gated,
    )  # fmt: skip
    return product


def add_product(
    addend: jax.Array, x: jax.Array, rows: jax.Array, layer: jax.Array, weights: PackedMatrix, *, num_tiles: int
) -> jax.Array:
    """addend + x @ weights[layer]ᵀ, in place of the addend, float32[num_tokens, outputs]."""
    out = jax.ShapeDtypeStruct(addend.shape, jnp.float32)
    call = jax.ffi.ffi_call(target("add_product"), out, input_output_aliases={0: 0})
    total: jax.Array = call(
        addend, x, rows, layer, weights.blocks,
        num_tiles=num_tiles, format=int(weights.format),
    )  # fmt: skip
    return total


def head_product(
    x: jax.Array, sampled: jax.Array, norm: jax.Array, weights: PackedMatrix, *, epsilon: float
) -> jax.Array:
    """Logits float32[num_sampled, vocab] of the tokens `sampled`, int32[num_sampled], negative in padding."""
    out = jax.ShapeDtypeStruct((sampled.shape[0], weights.num_outputs), jnp.float32)
    call = jax.ffi.ffi_call(target("head_product"), out)
    logits: jax.Array = call(
        x, sampled, norm[None], weights.blocks,
        format=int(weights.format), epsilon=np.float32(epsilon),
    )  # fmt: skip
    return logits


def embed(tokens: jax.Array, rows: jax.Array, weights: PackedMatrix, *, num_tiles: int) -> jax.Array:
    """The embedding's rows of int32[num_tokens], float32[num_tokens, hidden]."""
    out = jax.ShapeDtypeStruct((tokens.shape[0], weights.num_inputs), jnp.float32)
    embedded: jax.Array = jax.ffi.ffi_call(target("embed"), out)(
        tokens, rows, weights.blocks, num_tiles=num_tiles, format=int(weights.format)
    )
    return embedded


def attention(
    qkv: jax.Array, rotations: jax.Array, rows: jax.Array, page_table: jax.Array, layer: jax.Array, kv: KVPages, *,
    num_heads: int, num_tiles: int, window: int = 0,
) -> tuple[jax.Array, KVPages]:  # fmt: skip
    """Rotates queries and keys, writes keys and values into their pages, and attends causally.

    Args:
        qkv: float32[num_tokens, (num_heads + 2 * key heads) * head_dim].
        rotations: float32[num_tokens, head_dim], cosines and then sines of half a head each.
        page_table: int32[num_rows, max_pages].
        kv: the pages of all layers, updated in place.
        window: how many tokens up to its own a query sees; 0: all.

    Returns:
        float32[num_tokens, num_heads * head_dim], and kv.
    """
    scales = jnp.zeros(0, jnp.float32) if kv.scales is None else kv.scales
    out = jax.ShapeDtypeStruct((qkv.shape[0], num_heads * kv.data.shape[5]), jnp.float32)
    pages = jax.ShapeDtypeStruct(kv.data.shape, kv.data.dtype), jax.ShapeDtypeStruct(scales.shape, scales.dtype)
    call = jax.ffi.ffi_call(target("attention"), (out, *pages), input_output_aliases={5: 1, 6: 2})
    attended, data, scales = call(
        qkv, rotations, rows, page_table, layer, kv.data, scales, num_tiles=num_tiles, window=window
    )
    return attended, KVPages(data, None if kv.scales is None else scales)


def argmax(logits: jax.Array, slots: jax.Array, num_slots: int) -> jax.Array:
    """The first of the best tokens of each row, or the vocabulary's size where a logit is NaN; int32[num_rows].

    Args:
        logits: float32[num_rows, vocab].
        slots: int32[num_rows]; a row whose slot is not below `num_slots` is padding and not read.
    """
    out = jax.ShapeDtypeStruct((logits.shape[0],), jnp.int32)
    tokens: jax.Array = jax.ffi.ffi_call(target("argmax"), out)(logits, slots, num_slots=num_slots)
    return tokens


def empty(shape: tuple[int, ...], dtype: str, device: None = None) -> jax.Array:
    """An array of whatever its memory holds: large ones take no memory until they are written."""
    array: jax.Array = _empty_program(shape, dtype)()
    return array


@cache
def _empty_program(shape: tuple[int, ...], dtype: str) -> Callable[[], jax.Array]:
    """Kept, so that the second array of a kind compiles nothing."""
    call = jax.ffi.ffi_call(target("empty"), jax.ShapeDtypeStruct(shape, dtype))
    program: Callable[[], jax.Array] = jax.jit(call)
    return program
