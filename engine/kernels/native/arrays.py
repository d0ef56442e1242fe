"""Arrays whose memory nobody fills."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import jax

from engine.kernels.native.library import target


def empty(shape: tuple[int, ...], dtype: str, device: None = None) -> jax.Array:
    """An array of whatever its memory holds: a large one takes no memory until it is written."""
    array: jax.Array = _empty_program(shape, dtype)()
    return array


@cache
def _empty_program(shape: tuple[int, ...], dtype: str) -> Callable[[], jax.Array]:
    """The program is kept, so that the second array of a kind compiles nothing.

    It is compiled ahead of time, because what JAX remembers of a jitted function can be lost: its caches are bounded
    and can be cleared, and then an engine that wakes would compile.
    """
    call = jax.ffi.ffi_call(target("empty"), jax.ShapeDtypeStruct(shape, dtype))
    program: Callable[[], jax.Array] = jax.jit(call).lower().compile()
    return program
