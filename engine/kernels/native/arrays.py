"""Arrays whose memory nobody fills."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import jax

from engine.kernels.native.library import target

Tree = TypeVar("Tree")


def empty(shapes: Tree) -> Tree:
    """Arrays of whatever their memory holds: a large one takes no memory until it is written.

    Args:
        shapes: a tree of `jax.ShapeDtypeStruct`.
    """
    leaves, structure = jax.tree.flatten(shapes)
    arrays: Tree = jax.tree.unflatten(structure, _empty_program(tuple(leaves))())
    return arrays


@cache
def _empty_program(shapes: tuple[jax.ShapeDtypeStruct, ...]) -> Callable[[], list[jax.Array]]:
    """One program for all, because to lower one takes ten times as long as to add an array to it.

    The program is kept, so that the second arrays of a kind compile nothing. It is compiled ahead of time, because what
    JAX remembers of a jitted function can be lost: its caches are bounded and can be cleared, and then an engine that
    wakes would compile.
    """
    name = target("empty")
    program: Callable[[], list[jax.Array]] = (
        jax.jit(lambda: [jax.ffi.ffi_call(name, shape)() for shape in shapes]).lower().compile()
    )
    return program
