"""Copies single pages out of the KV cache on the device and into it, as bits."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cache.storage import KVLayout, KVPages
from engine.backends.base.backend import Backends
from engine.interface.config import EngineConfig
from engine.interface.cpu import cpu_features, num_cores
from engine.models.open_model import OpenModel
from engine.step.compiled import CompiledPrograms
from engine.step.device_arrays import DeviceArrays
from engine.weights.layout import Precision

# The bits of one page: for each array of KVPages, in their order, unsigned integers without the page axis.
PageBits = tuple[jax.Array, ...]

_PAGE_AXIS = 1  # of all arrays of KVPages
_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}  # by bytes


def read_page(kv: KVPages, page_id: jax.Array) -> PageBits:
    """A copy of one page; a program."""
    return tuple(
        lax.dynamic_index_in_dim(_bits(leaf), page_id, _PAGE_AXIS, keepdims=False) for leaf in jax.tree.leaves(kv)
    )


def write_page(kv: KVPages, page_id: jax.Array, page: PageBits) -> KVPages:
    """`kv`, which is donated, with one page replaced; a program.

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


class PageIO:
    """The `PageDevice` of an engine, which enqueues its copies between the steps."""

    def __init__(self, arrays: DeviceArrays, compiled: CompiledPrograms) -> None:
        self._arrays = arrays
        self._compiled = compiled
        self._shapes: tuple[jax.ShapeDtypeStruct, ...] = jax.eval_shape(read_page, arrays.kv, np.int32(0))
        self.page_bytes = _num_bytes(self._shapes)

    def read_page(self, page_id: int) -> PageBits:
        """Enqueues a copy of a page behind all steps dispatched so far."""
        page: PageBits = self._compiled["read page"](self._arrays.kv, np.int32(page_id))
        for leaf in page:
            leaf.copy_to_host_async()
        return page

    def write_page(self, page_id: int, page: PageBits) -> None:
        """Enqueues the writing of a page before all steps that are dispatched later."""
        self._arrays.kv = self._compiled["write page"](self._arrays.kv, np.int32(page_id), page)

    def to_host(self, page: PageBits) -> list[np.ndarray]:
        """Waits for the arrays of a page, without the interpreter lock; any thread may call it."""
        return [np.ascontiguousarray(leaf) for leaf in page]

    def to_device(self, content: np.ndarray) -> PageBits:
        """Makes a page of uint8[page_bytes], its arrays' bytes one after the other; any thread may call it."""
        leaves, start = [], 0
        for shape in self._shapes:
            end = start + _num_bytes([shape])
            leaves.append(jax.device_put(content[start:end].view(shape.dtype).reshape(shape.shape)))
            start = end
        return tuple(leaves)


def _num_bytes(shapes: Sequence[jax.ShapeDtypeStruct]) -> int:
    return sum(math.prod(shape.shape) * np.dtype(shape.dtype).itemsize for shape in shapes)


def _bits(leaf: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(leaf, _UNSIGNED[jnp.dtype(leaf.dtype).itemsize])


def page_parts(opened: OpenModel, config: EngineConfig, backends: Backends, layout: KVLayout) -> list[str]:
    """What the bits of a page depend on besides the model's files and the engine's code: in XLA, sizes and threads."""
    chosen = (backends.for_products, backends.for_attention)
    is_invariant = all(backend.is_opaque_to_xla for backend in chosen)
    sizes = () if is_invariant else (config.max_num_seqs, config.batched_tokens(), num_cores())
    device = jax.local_devices()[0]
    return [
        repr(opened.model), repr(replace(layout, num_pages=0)), repr(Precision.of_engine(config)), repr(sizes),
        *(backend.name for backend in chosen), backends.detail,
        jax.__version__, version("jaxlib"), str(os.environ.get("XLA_FLAGS")),
        device.platform, device.device_kind, cpu_features(),
    ]  # fmt: skip
