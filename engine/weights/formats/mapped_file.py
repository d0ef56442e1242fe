"""Memory-mapped files, whose pages are returned to the system after use."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from engine.interface.regular_file import open_regular


def map_file(path: Path) -> np.ndarray:
    """The bytes of a file, uint8[size], read lazily; raises OSError, and ValueError if it is empty."""
    with open_regular(path) as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def forget(data: np.ndarray) -> None:
    """Returns the memory of a view of a mapped file; a later access reads it again."""
    base: object = data
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if not isinstance(base, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    # Pages at the edges, which may belong to others as well, stay.
    first = data.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data
    start, end = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE, (first + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > start:
        base.madvise(mmap.MADV_DONTNEED, start, end - start)
