"""Uninitialised arrays, made by compiled programs."""

from collections.abc import Callable
from typing import TypeVar

import jax

Tree = TypeVar("Tree")


class EmptyArrays:
    """Makes the arrays of a tree by one program, because lowering one takes ten times as long as adding an array to it.

    Programs are compiled ahead of time and kept: JAX's caches are bounded, and an engine that wakes would compile
    again.
    """

    def __init__(self, make: Callable[[jax.ShapeDtypeStruct], jax.Array]) -> None:
        """Takes the function that makes one array, within a program that is traced."""
        self._make = make
        self._programs: dict[tuple[jax.ShapeDtypeStruct, ...], Callable[[], list[jax.Array]]] = {}

    def __call__(self, shapes: Tree) -> Tree:
        """Arrays of a tree of `jax.ShapeDtypeStruct`, on JAX's first device or as their shardings say."""
        leaves, structure = jax.tree.flatten(shapes)
        program = self._programs.get(tuple(leaves))
        if program is None:
            shardings = [leaf.sharding for leaf in leaves]
            traced = jax.jit(lambda: [self._make(leaf) for leaf in leaves], out_shardings=shardings)
            program = self._programs[tuple(leaves)] = traced.lower().compile()
        arrays: Tree = jax.tree.unflatten(structure, program())
        return arrays
