"""The device arrays behind the pages: their layout, reads and writes, and how many pages fit into memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cache.page_groups import PageGroups
from cache.states import StateLayout

LARGEST_SHARE_OF_AVAILABLE = 0.8  # the rest is for intermediate results and for other processes
_LARGEST = {"int8": 127.0, "int16": 32767.0}  # of pages of integers
_CONTROL_GROUP = Path("/sys/fs/cgroup")

# Tokens of a page. Small pages waste less at the end of a sequence and share shorter prefixes. With large
# pages, the host hashes less and the device gathers less.
PAGE_SIZE_BY_BACKEND = {"cpu": 32, "gpu": 16, "tpu": 128}

# The vectors of one head within a page are contiguous, because attention goes through a page head by head.
AXES = ("layer", "page", "key_or_value", "head", "token", "feature")


class KVPages(NamedTuple):
    """The memory of all sequences: keys and values in pages, and the states of recurrent layers.

    The native kernels lay out a page as they read it (src/pages/packed_pages.h); no other code reads what they wrote.
    """

    # [layer, page, part, head, token, feature]; the parts are keys and values, or one that is both, as latents are.
    data: jax.Array
    scales: jax.Array | None  # float32[layer, page, part, head, token] where data is of integers, else None
    states: tuple[jax.Array, ...] = ()  # as StateLayout says; none where no layer is recurrent
    pictures: jax.Array | None = None  # float32[position, hidden], embeddings of pictures; None: it sees none

    @property
    def page_size(self) -> int:
        return self.data.shape[4]

    @property
    def num_heads(self) -> int:
        return self.data.shape[3]

    @property
    def is_transformed(self) -> bool:
        """Whether keys and values are here as their Hadamard transforms, and so are queries and what comes of them.

        A scale follows the largest feature of a vector. One that is far larger than the others would take bits away
        from them; transformed, all features are of a like size (Ashkboos et al., "QuaRot", 2024). Of int16 enough bits
        are left.
        """
        return str(self.data.dtype) == "int8"

    @property
    def num_parts(self) -> int:
        """2 where keys and values are vectors of their own, 1 where a vector is both."""
        return self.data.shape[2]

    def write(self, layer: jax.Array, pages: jax.Array, offsets: jax.Array, *parts: jax.Array) -> KVPages:
        """Writes keys and values [num_tokens, head, feature] in place, inside a program that donates these arrays.

        `pages` and `offsets` are int32[num_tokens]: the page of each token, and its position within the page.
        """
        both = jnp.stack(parts, axis=1)
        if self.scales is None:
            return self._replace(data=self.data.at[layer, pages, :, :, offsets].set(both.astype(self.data.dtype)))
        # The quantisation is symmetric. Each token and head has its own scale, because several steps fill a page.
        wide = both.astype(jnp.float32)
        scales = jnp.max(jnp.abs(wide), axis=-1) / _LARGEST[str(self.data.dtype)]
        quantised = jnp.round(wide / jnp.where(scales == 0.0, 1.0, scales)[..., None]).astype(self.data.dtype)
        return self._replace(
            data=self.data.at[layer, pages, :, :, offsets].set(quantised),
            scales=self.scales.at[layer, pages, :, :, offsets].set(scales),
        )

    def read(self, layer: jax.Array, pages: jax.Array, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
        """Keys and values of pages int32[num_rows, num_pages]: [num_rows, head, num_pages * page_size, feature]."""
        block = self.data[layer, pages]
        if self.scales is not None:
            block = block.astype(jnp.float32) * self.scales[layer, pages][..., None]
        # [part, num_rows, head, page, token, feature]
        parts = jnp.moveaxis(block.astype(dtype), (2, 1), (0, 3)).reshape(
            self.num_parts, pages.shape[0], -1, pages.shape[1] * self.page_size, block.shape[5]
        )
        return parts[0], parts[-1]


def zeros(shapes: KVPages) -> KVPages:
    """Pages of zeros, of a tree of their shapes."""
    pages: KVPages = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding), shapes)
    return pages


@dataclass(frozen=True)
class KVLayout:
    """The shape of the KV cache of one model."""

    num_layers: int  # whose keys and values are in one page
    num_pages: int  # the null page included
    page_size: int  # tokens
    num_kv_heads: int
    head_dim: int
    dtype: str  # float32, bfloat16, int16 or int8
    states: StateLayout = StateLayout()
    num_parts: int = 2  # of a page: keys and values, or one that is both
    pictures: tuple[int, int] | None = None  # positions and features of the embeddings of pictures
    groups: PageGroups | None = None  # of layers with pages of their own; None: a page is of all layers

    @property
    def num_groups(self) -> int:
        return 1 if self.groups is None else self.groups.num_groups

    def longest_sequence(self, max_step_tokens: int) -> int:
        """Tokens of the longest sequence that the pages suffice for, where a step computes at most so many of it."""
        if self.groups is None:
            return (self.num_pages - 1) * self.page_size
        return self.groups.longest_sequence(self.num_pages - 1, self.page_size, max_step_tokens)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes in the order of AXES."""
        return (self.num_layers, self.num_pages, self.num_parts, self.num_kv_heads, self.page_size, self.head_dim)

    @property
    def bytes_per_page(self) -> int:
        vectors = self.num_layers * self.page_size * self.num_parts * self.num_kv_heads
        scale_bytes = 4 if self.dtype in _LARGEST else 0
        return vectors * (self.head_dim * jnp.dtype(self.dtype).itemsize + scale_bytes)

    @property
    def num_bytes(self) -> int:
        """Bytes of all pages and states."""
        return self.num_pages * self.bytes_per_page + self.states.num_entries * self.states.bytes_per_entry

    def partition_spec(self, head: str | None = None) -> PartitionSpec:
        """How `data` is split over a mesh: the head axis over the mesh axis `head`, and no other axis."""
        return PartitionSpec(*(head if axis == "head" else None for axis in AXES))

    def allocate(
        self, mesh: Mesh | None = None, head: str | None = None, *, empty: Callable[[KVPages], KVPages] = zeros
    ) -> KVPages:
        """Makes the arrays, of any content, because pages are written before they are read; a mesh splits the heads."""

        def shape(num_axes: int, dtype: str) -> Any:
            spec = PartitionSpec(*self.partition_spec(head)[:num_axes])
            sharding = None if mesh is None else NamedSharding(mesh, spec)
            return jax.ShapeDtypeStruct(self.shape[:num_axes], dtype, sharding=sharding)

        scales = shape(len(AXES) - 1, "float32") if self.dtype in _LARGEST else None
        states: tuple[Any, ...] = tuple(
            jax.ShapeDtypeStruct((array.num_layers, self.states.num_entries, *array.shape), "float32")
            for array in self.states.arrays
        )
        pictures: Any = None if self.pictures is None else jax.ShapeDtypeStruct(self.pictures, "float32")
        return empty(KVPages(shape(len(AXES), self.dtype), scales, states, pictures))


def machine_memory() -> tuple[int, int]:
    """The total and the available bytes of memory, of the device, the container or the machine."""
    device = jax.local_devices()[0].memory_stats() if jax.default_backend() != "cpu" else None
    if device is not None and "bytes_limit" in device:
        return device["bytes_limit"], device["bytes_limit"] - device["bytes_in_use"]
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = total
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():  # only on Linux; elsewhere the physical memory is taken
        fields = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
        available = int(fields["MemAvailable"].split()[0]) * 1024
    limit = _container_number("memory.max")
    if limit is not None:
        used = (_container_number("memory.current") or 0) - _container_file_cache()
        total, available = min(total, limit), max(0, min(available, limit - used))
    return total, available


def _container_file_cache() -> int:
    """Bytes of cached files in our control group; the kernel frees them when it needs memory."""
    try:
        lines = (_CONTROL_GROUP / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("active_file ", "inactive_file ")))


def _container_number(name: str) -> int | None:
    """A number of our control group (cgroup v2), or None if there is no such file or no limit."""
    try:
        text = (_CONTROL_GROUP / name).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return None if text == "max" else int(text)


def cache_budget(*, memory_utilization: float, kv_cache_bytes: int | None = None) -> int:
    """The bytes that the KV cache may take.

    `memory_utilization` is a share of the total memory and not of the available memory: the number of pages is part of
    the shapes of compiled programs, so a later start must find the same one. `kv_cache_bytes` replaces the share.

    Raises ValueError: `kv_cache_bytes` are not available.
    """
    total, available = machine_memory()
    limit = int(available * LARGEST_SHARE_OF_AVAILABLE)
    if kv_cache_bytes is not None and kv_cache_bytes > limit:
        raise ValueError(f"kv_cache_bytes is {kv_cache_bytes}; at most {limit} of the memory available now can be had")
    wanted = int(total * memory_utilization) if kv_cache_bytes is None else kv_cache_bytes
    return min(wanted, limit)


def pages_that_fit(
    bytes_per_page: int, num_useful: int, *, memory_utilization: float, kv_cache_bytes: int | None = None
) -> int:
    """The number of pages to make, the null page included, at most `num_useful`.

    Raises ValueError: fewer than two pages fit, or `kv_cache_bytes` are not available.
    """
    budget = cache_budget(memory_utilization=memory_utilization, kv_cache_bytes=kv_cache_bytes)
    fitting = budget // bytes_per_page
    if fitting < 2:
        raise ValueError(
            f"the KV cache may take {budget} bytes and a page takes {bytes_per_page}: fewer than two pages fit"
        )
    return min(fitting, num_useful)


def check_num_pages(num_pages: int, bytes_per_page: int) -> None:
    """Raises ValueError where so many pages do not fit into the memory of the machine."""
    total, _ = machine_memory()
    if num_pages * bytes_per_page > total:
        raise ValueError(
            f"num_pages is {num_pages}; a page takes {bytes_per_page} bytes, so at most {total // bytes_per_page} fit "
            "into the memory"
        )
