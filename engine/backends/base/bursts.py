"""The interface of bursts: programs of several decode steps that tell the host of each as soon as it has sampled."""

from typing import Protocol

import jax
import numpy as np


class Burst(Protocol):
    """One run of such a program, as the host sees it. It ends for the host when nothing refers to it any more."""

    @property
    def name(self) -> np.ndarray:
        """What the program takes to find it, int32[1]."""

    def wait(self, step: int, seconds: float) -> np.ndarray | None:
        """The tokens of a step, int32[num_rows], once it has sampled; None where that takes longer.

        Does not hold the interpreter's lock.
        """

    def is_told(self, step: int) -> bool:
        """Whether a step has sampled; does not wait."""

    def cut(self) -> int:
        """Lets no further step begin; returns how many have begun, the first of which always has."""


class Bursts(Protocol):
    """What a backend needs for programs that tell of their steps."""

    def tell(self, tokens: jax.Array, name: jax.Array) -> jax.Array:
        """Called in a program after each step, with the tokens of its rows: whether it is to compute the next one."""

    def open(self, num_rows: int, num_steps: int) -> Burst:
        """Makes a burst of so many steps; raises MemoryError."""
