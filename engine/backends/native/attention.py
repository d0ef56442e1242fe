"""Paged attention by the native kernel, as a function of JAX arrays."""

from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from cache.page_groups import PageGroups
from cache.storage import KVPages
from engine.backends.base.operands import TokenIndex
from engine.backends.native.library import target

Array: TypeAlias = jax.Array | np.ndarray

HEAD_MULTIPLE = 16  # the size of a head is a multiple of it
LARGEST_HEAD = 704  # features
_OWN = np.zeros(0, np.int32)  # `last_seen` of tokens that see what `is_causal` says; places of layers in their order
_NOTHING = np.zeros(0, np.float32)


def attention(
    qkv: Array, rotations: Array, tables: Array, windows: Array, q_norm: Array, k_norm: Array,
    rows: Array, page_table: Array, layer: Array, kv: KVPages, *,
    num_heads: int, num_tiles: int, scale: float, softcap: float = 0.0, epsilon: float, is_causal: bool = True,
    sinks: Array = _NOTHING, slopes: Array = _NOTHING, rounds_biases: bool = False, last_seen: Array | None = None,
    first_seen: Array | None = None, groups: PageGroups | None = None, index: TokenIndex | None = None,
) -> tuple[jax.Array, KVPages]:  # fmt: skip
    """Norms and rotates queries and keys, writes keys and values into their pages, and attends.

    The last `num_tiles` of the rows are tiles. The norm is an RMS norm (Zhang and Sennrich, 2019), the rotation that of
    Su et al., "RoFormer", 2021. An absent norm is an empty array, and so are absent sinks.

    Args:
        qkv: float32[num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], or where keys are values, 1 instead of 2.
            Heads may be narrower than those of pages, unless of int8, where neither norms nor sinks are.
        rows: int32[num_rows, columns] of a step, whose first two columns are a row's start and its number of tokens.
        is_causal: whether a token sees those before it alone; else tiles see their whole text, up to the column END.
        page_table: int32[num_rows, max_pages].
        sinks: float32[num_layers, num_heads].
        slopes: float32[num_heads], what each position between a query and a key takes from their score; or empty.
        rounds_biases: whether keys add slope times position instead, rounded to bfloat16 and scaled as the scores are.
        last_seen: int32[num_tokens], the last position that each token of a tile sees, which never falls within the
            rows of a sequence; None: its own.
        first_seen: likewise the first position, where windows are 0; None: the first one of all.
        index: what picks the tokens that queries see; where keys are values, which have one head.
        groups: of layers with pages of their own; of each row, the page table has theirs side by side. None: one.

    Raises ValueError where a size does not fit: heads have 16, 32, ... 704 features, an even number of them rotated.
    """
    num_layers, _, _, num_kv_heads, _, head_dim = kv.data.shape
    places, num_groups = _OWN, 1
    if groups is not None and groups.num_groups > 1:
        num_layers, num_groups = len(groups.of_layer), groups.num_groups
        places = np.array([groups.places, groups.of_layer], np.int32).T
    _check_sizes(head_dim, rotations.shape[-1], softcap)
    _check_norm("q_norm", q_norm, num_layers, num_heads, head_dim)
    _check_norm("k_norm", k_norm, num_layers, num_kv_heads, head_dim)
    for name, constants in (("tables", tables), ("windows", windows)):
        if constants.shape != (num_layers,):
            raise ValueError(f"{name} has the shape {constants.shape}; it is ({num_layers},), one for each layer")
    if sinks.size and sinks.shape != (num_layers, num_heads):
        raise ValueError(f"sinks have the shape {sinks.shape}; it is ({num_layers}, {num_heads}) or empty")
    if slopes.size and slopes.shape != (num_heads,):
        raise ValueError(f"slopes have the shape {slopes.shape}; it is ({num_heads},) or empty")
    scales = jnp.zeros(0, jnp.float32) if kv.scales is None else kv.scales
    own_dim = qkv.shape[1] // (num_heads + kv.num_parts * num_kv_heads)
    out = jax.ShapeDtypeStruct((qkv.shape[0], num_heads * own_dim), jnp.float32)
    pages = jax.ShapeDtypeStruct(kv.data.shape, kv.data.dtype), jax.ShapeDtypeStruct(scales.shape, scales.dtype)
    call = jax.ffi.ffi_call(target("attention"), (out, *pages), input_output_aliases={9: 1, 10: 2})
    attended, data, scales = call(
        qkv, rotations, tables, windows, q_norm, k_norm, rows, page_table, layer, kv.data, scales,
        sinks, _OWN if last_seen is None else last_seen, _OWN if first_seen is None else first_seen, places,
        slopes.astype(jnp.bfloat16).astype(np.float32) if rounds_biases else slopes,
        _NOTHING if index is None else index.queries.reshape(len(index.queries), -1).astype(jnp.float32),
        _NOTHING if index is None else index.weights,
        num_tiles=num_tiles, num_groups=num_groups, scale=np.float64(scale), softcap=np.float32(softcap),
        epsilon=np.float32(epsilon), is_causal=is_causal,
        rounded_bias_scale=np.float32(scale if rounds_biases else 0.0),
        num_picked=0 if index is None else index.num_picked,
    )  # fmt: skip
    return attended, kv._replace(data=data, scales=None if kv.scales is None else scales)


def _check_sizes(head_dim: int, rotary_dim: int, softcap: float) -> None:
    if head_dim % HEAD_MULTIPLE != 0 or not 0 < head_dim <= LARGEST_HEAD:
        raise ValueError(f"head_dim is {head_dim}; it is a multiple of {HEAD_MULTIPLE}, at most {LARGEST_HEAD}")
    if rotary_dim % 2 != 0 or rotary_dim > head_dim:
        raise ValueError(f"rotary_dim is {rotary_dim}; it is an even number, at most head_dim, which is {head_dim}")
    if softcap < 0.0:
        raise ValueError(f"softcap is {softcap}; it is not negative")


def _check_norm(name: str, norm: Array, num_layers: int, num_heads: int, head_dim: int) -> None:
    allowed = (num_layers, head_dim), (num_layers, num_heads * head_dim)
    if norm.size and norm.shape not in allowed:
        raise ValueError(f"{name} has the shape {norm.shape}; it is {allowed[0]}, {allowed[1]} or empty")
