"""The C library's memory allocator in a process that only serves."""

from __future__ import annotations

import contextlib
import ctypes
import os

_M_ARENA_MAX = -8  # of glibc's malloc.h


def limit_arenas() -> None:
    """Lets glibc have one memory arena for each core, and at least two, in the place of eight for each core.

    A thread keeps what it has freed in its arena, up to 64 MiB, and another thread cannot use it there. More arenas
    than threads that run at once only keep more memory. Must be called before threads are started. It has no effect
    with other C libraries, and none where the environment variable MALLOC_ARENA_MAX decides.
    """
    if "MALLOC_ARENA_MAX" in os.environ:
        return
    with contextlib.suppress(OSError, AttributeError):  # no glibc
        ctypes.CDLL("libc.so.6").mallopt(_M_ARENA_MAX, max(2, os.cpu_count() or 1))
