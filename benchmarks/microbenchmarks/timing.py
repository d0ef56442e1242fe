"""Tools to time compiled programs: the steps that they compute, calls, and the bandwidth of memory as a bound."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import jax
import numpy as np

from cache.storage import PAGE_SIZE_BY_BACKEND
from engine.interface.config import TILE_SIZE

T = TypeVar("T")
READS = 5  # of which the fastest counts
READ_BYTES = 256 << 20  # by each thread, more than what a cache holds for it


class Case(NamedTuple):
    """A step: decode rows, or tiles of one prompt."""

    num_rows: int
    num_tiles: int
    context: int  # tokens of each row, the present ones included

    @property
    def num_tokens(self) -> int:
        return self.num_rows + self.num_tiles * TILE_SIZE

    @property
    def num_sequences(self) -> int:
        return self.num_rows or 1

    @property
    def pages_per_sequence(self) -> int:
        return -(-self.context // PAGE_SIZE_BY_BACKEND["cpu"])

    @property
    def num_keys_seen(self) -> float:
        """Keys that the mean query attends to."""
        return self.context - self.num_tiles * TILE_SIZE / 2

    @property
    def label(self) -> str:
        what = f"{self.num_rows} decode rows" if self.num_rows else f"{self.num_tokens} prompt tokens"
        return f"{what}, context {self.context}"


def time_calls(call: Callable[[], jax.Array], repeats: int) -> list[float]:
    """Seconds of each call until its result is there; one more, the first, compiles and is not counted."""
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        call().block_until_ready()
        times.append(time.perf_counter() - begin)
    return times[1:]


def donating(program: Callable[[T], tuple[jax.Array, T]], state: T) -> Callable[[], jax.Array]:
    """Calls of a program that takes over its argument and returns it anew, such as one that updates pages in place."""

    def call() -> jax.Array:
        nonlocal state
        out, state = program(state)
        return out

    return call


class MemoryReader:
    """Reads an array of its own with a thread for each core that this process may use."""

    def __init__(self, num_bytes: int = READ_BYTES) -> None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._arrays = [np.ones(num_bytes // 4, np.float32) for _ in range(workers)]
        self._pool = ThreadPoolExecutor(workers)

    def rate(self) -> float:
        """Reads once; bytes a second."""
        begin = time.perf_counter()
        list(self._pool.map(np.max, self._arrays))
        return sum(array.nbytes for array in self._arrays) / (time.perf_counter() - begin)
