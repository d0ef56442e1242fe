"""Settings of the garbage collector and the memory allocator, for a process that only serves."""

import contextlib
import ctypes
import gc
import os

# A young collection starts when so many more objects were made than freed. It stops every thread while it frees what it
# finds, which takes some microseconds for each object: fifty thousand at once were a quarter of a second, when closed
# connections were left to it (server/http/transport/aiohttp_internals.py has why they are not).
_THRESHOLD = 1_000
# More than a start makes. Each collection would walk over modules and classes of which nothing is garbage: all of them
# took an eighth of the time of the imports.
_START_THRESHOLD = 1_000_000
_M_ARENA_MAX = -8  # of glibc's malloc.h


def postpone_gc() -> None:
    """Keeps the garbage collector from running until `freeze_gc`. Called before a start imports what it needs."""
    gc.set_threshold(_START_THRESHOLD)


def freeze_gc() -> None:
    """Keeps the garbage collector from stopping the engine thread and the event loop while they serve.

    All objects alive now, at the start or after one more model was loaded, are excluded from later collections, which
    are therefore short. It does not collect before: that took a third of a second of a start of two, and freed nothing
    to speak of.
    """
    gc.freeze()
    gc.set_threshold(_THRESHOLD, 5, 20)


def limit_malloc_arenas() -> None:
    """Limits glibc to one memory arena for each core, and at least two, instead of eight for each core.

    A thread keeps up to 64 MiB that it has freed in its arena. Must be called before threads are started. It does
    nothing with other C libraries, or where MALLOC_ARENA_MAX decides.
    """
    if "MALLOC_ARENA_MAX" in os.environ:
        return
    with contextlib.suppress(OSError, AttributeError):  # no glibc
        ctypes.CDLL("libc.so.6").mallopt(_M_ARENA_MAX, max(2, os.cpu_count() or 1))
