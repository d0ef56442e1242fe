"""Arrays whose content counts for nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import jax
import jax.numpy as jnp

Tree = TypeVar("Tree")


def empty(shapes: Tree) -> Tree:
    """Arrays of zeros, on JAX's first device or as their shardings say.

    Args:
        shapes: a tree of `jax.ShapeDtypeStruct`.
    """
    leaves, structure = jax.tree.flatten(shapes)
    arrays: Tree = jax.tree.unflatten(structure, _zeros_program(tuple(leaves))())
    return arrays


@cache
def _zeros_program(shapes: tuple[jax.ShapeDtypeStruct, ...]) -> Callable[[], list[jax.Array]]:
    """The program is kept, and compiled ahead of time, so that the second arrays of a kind compile nothing.

    What JAX remembers of its own functions can be lost: its caches are bounded, and can be cleared.
    """
    program: Callable[[], list[jax.Array]] = (
        jax.jit(
            lambda: [jnp.zeros(shape.shape, shape.dtype) for shape in shapes],
            out_shardings=[shape.sharding for shape in shapes],
        )
        .lower()
        .compile()
    )
    return program
