"""Attention of a picture's patches to each other: the kernel of paged attention, on pages for the time of the call."""

import jax
import jax.numpy as jnp
import numpy as np

from cache.storage import KVPages
from engine.backends.base.patches import Patches
from engine.backends.native.attention import HEAD_MULTIPLE, LARGEST_HEAD, attention
from engine.backends.native.library import target

_PAGE_SIZE = 64  # patches: what the kernel attends to at a time
_NOTHING = np.zeros(0, np.float32)
_LAYER = np.zeros((), np.int32)  # the pages are of one
_NO_WINDOW = np.zeros(1, np.int32)


def attend_patches(
    qkv: jax.Array, patches: Patches, *, num_heads: int, scale: float, angles: jax.Array | None, is_exact: bool
) -> jax.Array:
    """As `PatchAttention`; patches that are not real are neither read nor written.

    Unless it is exact, queries, keys, values and weights are rounded to bfloat16 where that is faster.

    Raises ValueError, while it is traced: the kernel does not take such heads.
    """
    num_patches, width = qkv.shape
    size = width // (3 * num_heads)
    padded = -(-size // HEAD_MULTIPLE) * HEAD_MULTIPLE
    if padded > LARGEST_HEAD:
        raise ValueError(
            f"native attention takes heads of up to {LARGEST_HEAD} features; those of the encoder of pictures have "
            f"{size}; --matmul-backend xla serves it"
        )
    num_pages = -(-num_patches // _PAGE_SIZE)
    pages = jax.ShapeDtypeStruct(
        (1, 1 + num_pages, 2, num_heads, _PAGE_SIZE, padded), jnp.float32 if is_exact else jnp.bfloat16
    )
    kv = KVPages(jax.ffi.ffi_call(target("empty"), pages)(), None)
    table = np.arange(1, 1 + num_pages, dtype=np.int32)[None]  # page 0 is nobody's
    rotations = jnp.zeros((1, num_patches, 0), jnp.float32)
    if angles is not None:
        rotations = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)[None]
    attended, _ = attention(
        qkv, rotations, np.array([-1 if angles is None else 0], np.int32), _NO_WINDOW, _NOTHING, _NOTHING,
        patches.layout.rows, table, _LAYER, kv,
        num_heads=num_heads, num_tiles=1, scale=scale, epsilon=0.0, is_causal=False,
        last_seen=patches.last_seen, first_seen=patches.first_seen,
    )  # fmt: skip
    return attended
