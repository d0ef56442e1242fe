"""Host memory for large arrays that a CPU device uses without a copy."""

import contextlib
import ctypes
import math
import mmap

import numpy as np
import numpy.typing as npt


def give_back_freed() -> None:
    """Returns freed memory from glibc to the system, which takes milliseconds without the interpreter lock."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def large_array(shape: tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
    """Zeros, aligned to a page of memory and in huge pages where the system gives them.

    `jax.device_put` uses such an array in place, while one of `numpy.empty` would be copied. Huge pages save a decode
    step, which reads all weights, the look-up of each 4 KiB.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size == 0:
        return np.empty(shape, dtype)
    # Memory of this process alone: systems give huge pages to it more freely than to what could be shared.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):  # on Linux
        with contextlib.suppress(OSError):  # a kernel that was built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype).reshape(shape)
