"""Arrays whose content counts for nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Sharding


def empty(shape: tuple[int, ...], dtype: Any, device: Sharding | None = None) -> jax.Array:
    """An array of zeros, on JAX's first device or as the sharding says."""
    return _zeros_program(shape, dtype, device)()


@cache
def _zeros_program(shape: tuple[int, ...], dtype: Any, device: Sharding | None) -> Callable[[], jax.Array]:
    """The program is kept, and compiled ahead of time, so that the second array of a kind compiles nothing.

    What JAX remembers of its own functions can be lost: its caches are bounded, and can be cleared.
    """
    program: Callable[[], jax.Array] = jax.jit(partial(jnp.zeros, shape, dtype), out_shardings=device).lower().compile()
    return program
