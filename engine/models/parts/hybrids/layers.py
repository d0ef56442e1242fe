"""Loops over layers of several kinds: the shortest program that goes through a pattern of layers."""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

Carry = TypeVar("Carry")

_LONGEST_PATTERN = 16  # layers that a loop's body may have


class Run(NamedTuple):
    """Layers of a repeated pattern."""

    first: int
    length: int  # of the pattern
    times: int  # that it comes


def runs_of(kinds: Sequence[Hashable]) -> list[Run]:
    """The layers as runs, of which each is a loop whose body has the layers of its pattern one by one.

    A branch on a layer's kind in one loop over all of them would copy the pages.
    """
    runs, first = [], 0
    while first < len(kinds):
        run = max((_run(kinds, first, length) for length in range(1, _LONGEST_PATTERN + 1)), key=_layers_saved)
        runs.append(run)
        first += run.length * run.times
    return runs


def through_layers(
    kinds: Sequence[Hashable], run_pattern: Callable[[Run, jax.Array, Carry], Carry], carry: Carry
) -> Carry:
    """Goes through layers of these kinds, and returns what the last of them makes of `carry`.

    Args:
        run_pattern: goes through the pattern of a run, where that comes for the index-th time.
    """
    for run in runs_of(kinds):
        body = partial(run_pattern, run)
        carry = body(jnp.int32(0), carry) if run.times == 1 else lax.fori_loop(0, run.times, body, carry)
    return carry


def _run(kinds: Sequence[Hashable], first: int, length: int) -> Run:
    pattern = kinds[first : first + length]
    if len(pattern) < length:
        return Run(first, 1, 1)
    count = 1
    while kinds[first + count * length : first + (count + 1) * length] == pattern:
        count += 1
    return Run(first, length, count) if count > 1 else Run(first, 1, 1)


def _layers_saved(run: Run) -> tuple[int, int]:
    return run.length * (run.times - 1), -run.length
