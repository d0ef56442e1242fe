"""Arrays whose memory nobody fills."""

from __future__ import annotations

import jax

from engine.backends.base.empty_arrays import EmptyArrays
from engine.backends.native.library import target


def _unfilled(shape: jax.ShapeDtypeStruct) -> jax.Array:
    array: jax.Array = jax.ffi.ffi_call(target("empty"), shape)()
    return array


empty = EmptyArrays(_unfilled)  # of whatever their memory holds: a large one takes no memory until it is written
