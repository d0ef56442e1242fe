"""Memory bandwidth of plain reads, as a bound for kernels."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

READS = 5  # of which the fastest counts
READ_BYTES = 256 << 20  # by each thread, more than what a cache holds for it


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
