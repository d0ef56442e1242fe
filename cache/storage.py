"""The device arrays behind the pages, and how many fit."""

from __future__ import annotations

import os
from dataclasses import dataclass

import jax
import jax.numpy as jnp

_LARGEST_SHARE_OF_AVAILABLE = 0.8  # the rest is for the weights' arithmetic and for everyone else


@dataclass(frozen=True)
class KVLayout:
    """Shape of the KV cache of one model."""

    num_layers: int
    num_pages: int  # the null page included
    page_size: int  # tokens
    num_kv_heads: int
    head_dim: int
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        """[layer, page, token in the page, key or value, head, feature]."""
        return (self.num_layers, self.num_pages, self.page_size, 2, self.num_kv_heads, self.head_dim)

    @property
    def bytes_per_page(self) -> int:
        per_token = self.num_layers * 2 * self.num_kv_heads * self.head_dim
        return self.page_size * per_token * jnp.dtype(self.dtype).itemsize

    def allocate(self) -> jax.Array:
        """The arrays, zeroed: a masked position may be multiplied by 0, and 0 times garbage is not always 0."""
        return jnp.zeros(self.shape, self.dtype)


def machine_memory() -> tuple[int, int]:
    """Bytes of memory that this machine has, and that it could give us now without swapping."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/proc/meminfo", encoding="ascii") as meminfo:
            for line in meminfo:
                if line.startswith("MemAvailable:"):
                    return total, int(line.split()[1]) * 1024
    except FileNotFoundError:
        pass  # no Linux: the physical memory is the best there is to know
    return total, total


def pages_that_fit(bytes_per_page: int, memory_utilization: float, num_useful: int) -> int:
    """How many pages to make.

    The share is one of all memory, not of what is available: the count is part of the compiled
    programs' shapes, and must be the same at the next start for them to be found again.

    Args:
        memory_utilization: share of the machine's memory, 0 to 1; never more than is available.
        num_useful: pages that could ever be in use at once; more would lie idle.

    Raises:
        ValueError: not even two pages fit.
    """
    total, available = machine_memory()
    wanted = int(total * memory_utilization)
    fitting = min(wanted, int(available * _LARGEST_SHARE_OF_AVAILABLE)) // bytes_per_page
    if fitting < 2:
        raise ValueError(
            f"a page takes {bytes_per_page} bytes, {memory_utilization:.0%} of the machine's memory is {wanted} "
            f"bytes and {available} are available: fewer than two pages fit"
        )
    return min(fitting, num_useful)
