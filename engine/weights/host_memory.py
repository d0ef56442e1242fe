"""Host memory for large arrays that a CPU device uses without a copy."""

import contextlib
import ctypes
import math
import mmap

import numpy as np
import numpy.typing as npt

_HUGE_PAGE = 2 << 20  # of x86 and most of ARM
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25  # Linux's numbers; the second is of Linux 6.1


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


def put_in_huge_pages(address: int, num_bytes: int) -> None:
    """Moves memory that is in use into huge pages; what it holds stays.

    For arrays that programs make: `large_array` has its memory there from the beginning. An older Linux moves it by and
    by, and what another system does not know is left out.
    """
    start, end = -(-address // _HUGE_PAGE) * _HUGE_PAGE, (address + num_bytes) // _HUGE_PAGE * _HUGE_PAGE
    if start >= end or not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    with contextlib.suppress(OSError, AttributeError):
        madvise = ctypes.CDLL(None).madvise
        for advice in (_MADV_HUGEPAGE, _MADV_COLLAPSE):
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice)
