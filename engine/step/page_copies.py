"""Single pages of the KV cache, copied out of the device's arrays and into them as bits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cache.storage import KVPages

# The bits of one page: for each array of KVPages, in their order, unsigned integers without the page axis.
PageBits = tuple[jax.Array, ...]

_PAGE_AXIS = 1  # of all arrays of KVPages
_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}  # by bytes


def read_page(kv: KVPages, page_id: jax.Array) -> PageBits:
    """A copy of one page."""
    return tuple(
        lax.dynamic_index_in_dim(_bits(leaf), page_id, _PAGE_AXIS, keepdims=False) for leaf in jax.tree.leaves(kv)
    )


def write_page(kv: KVPages, page_id: jax.Array, page: PageBits) -> KVPages:
    """`kv`, which is donated, with one page replaced.

    XLA on CPU computes with bfloat16 by way of float32. For an update in place it would convert the whole array, which
    takes hundreds of milliseconds; bits it leaves alone.
    """
    leaves, structure = jax.tree.flatten(kv)
    written: KVPages = jax.tree.unflatten(
        structure,
        [
            lax.bitcast_convert_type(
                lax.dynamic_update_index_in_dim(_bits(leaf), part, page_id, _PAGE_AXIS), leaf.dtype
            )
            for leaf, part in zip(leaves, page, strict=True)
        ],
    )
    return written


def to_host(page: PageBits) -> list[np.ndarray]:
    """The arrays of a page on the host; waits for them without the interpreter lock."""
    return [np.ascontiguousarray(leaf) for leaf in page]


def to_device(content: np.ndarray, shapes: Sequence[jax.ShapeDtypeStruct]) -> PageBits:
    """A page on the device.

    Args:
        content: uint8[num_bytes], the bytes of all arrays of the page, one after the other.
        shapes: of these arrays.
    """
    leaves, start = [], 0
    for shape in shapes:
        end = start + num_bytes([shape])
        leaves.append(jax.device_put(content[start:end].view(shape.dtype).reshape(shape.shape)))
        start = end
    return tuple(leaves)


def num_bytes(shapes: Sequence[jax.ShapeDtypeStruct]) -> int:
    """Of all these arrays."""
    return sum(math.prod(shape.shape) * np.dtype(shape.dtype).itemsize for shape in shapes)


def _bits(leaf: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(leaf, _UNSIGNED[jnp.dtype(leaf.dtype).itemsize])
