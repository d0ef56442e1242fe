"""Settings of the garbage collector and the memory allocator, for a process that only serves."""

import asyncio
import contextlib
import ctypes
import gc
import mmap
import os
import time
from pathlib import Path

# A young collection starts when so many more objects were made than freed. It stops every thread while it frees what it
# finds, which takes some microseconds for each object: fifty thousand at once were a quarter of a second, when closed
# connections were left to it (server/http/transport/aiohttp_internals.py has why they are not).
_THRESHOLD = 1_000
# More than a start makes. Each collection would walk over modules and classes of which nothing is garbage: all of them
# took an eighth of the time of the imports.
_START_THRESHOLD = 1_000_000
_M_ARENA_MAX = -8  # of glibc's malloc.h
TRIM_INTERVAL_S = 10.0
TRIM_ABOVE_BYTES = 32 << 20  # of growth since the last time; less is what requests of the next seconds need again
IDLE_SHARE = 0.1  # of a core; a process that computes less has no requests to speak of
_STATM = Path("/proc/self/statm")


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


async def return_freed_memory(interval: float = TRIM_INTERVAL_S, above: int = TRIM_ABOVE_BYTES) -> None:
    """Returns to the system, every few seconds, what a burst of requests has allocated and freed; never ends.

    glibc gives back by itself only what lies at the end of an arena, and one small object behind a hundred freed
    megabytes keeps all of them resident. While requests are served, it waits until the resident memory has grown by
    `above`. When they have ended, it returns the rest, soon and then ever more rarely, because what is kept for a while
    is freed later. It does nothing on other systems than Linux, and with other C libraries.
    """
    try:
        trim = ctypes.CDLL("libc.so.6").malloc_trim
        resident = resident_bytes()
    except (OSError, AttributeError):
        return
    computed, num_idle = time.process_time(), 0  # intervals in which it has been idle, one after the other
    while True:
        await asyncio.sleep(interval)
        before, computed = computed, time.process_time()
        num_idle = 0 if computed - before > IDLE_SHARE * interval else num_idle + 1
        is_power_of_two = num_idle > 0 and num_idle & (num_idle - 1) == 0
        now = resident_bytes()
        if now > resident + above or is_power_of_two:
            await asyncio.to_thread(trim, 0)  # without the interpreter lock; it takes milliseconds
            resident = now = resident_bytes()
        resident = min(resident, now)


def resident_bytes() -> int:
    """The memory of this process that is resident; raises OSError where the system does not tell."""
    return int(_STATM.read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE
