"""The garbage collector and the allocator of a process that serves."""

from __future__ import annotations

import gc
import os
import platform
import re
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from server.cli.memory import freeze_gc, postpone_gc
from tests.patience import PROCESS_S


class Cycle:
    """An object that only a collection can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def put_off() -> Iterator[None]:
    threshold = gc.get_threshold()
    gc.unfreeze()
    postpone_gc()
    yield
    gc.freeze()  # as it was, for all tests (tests/conftest.py)
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("put_off")
def test_a_start_collects_nothing_and_what_it_left_is_never_looked_at_again() -> None:
    gone: list[None] = []

    def freed(_: object) -> None:
        gone.append(None)

    references = [weakref.ref(Cycle(), freed) for _ in range(200_000)]
    freeze_gc()
    gc.collect()
    assert not gone
    gc.unfreeze()
    gc.collect()
    assert len(gone) == len(references)


@pytest.fixture
def calm() -> Iterator[None]:
    threshold = gc.get_threshold()
    freeze_gc()
    yield
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("calm")
def test_a_collection_never_finds_much_to_free() -> None:
    """What it finds it frees in one go, while every stream waits."""
    waiting = most = 0

    def freed(_: object) -> None:
        nonlocal waiting
        waiting -= 1

    references = []
    for _ in range(20_000):
        references.append(weakref.ref(Cycle(), freed))
        waiting += 1
        most = max(most, waiting)
    assert most <= 2_000


# Threads that run at once and allocate; then glibc tells of its arenas on standard output.
_PROGRAM = """
import ctypes, sys, threading
from server.cli.memory import limit_malloc_arenas
limit_malloc_arenas()
libc = ctypes.CDLL("libc.so.6")
num_threads = int(sys.argv[1])
barrier = threading.Barrier(num_threads)
def work():
    barrier.wait()
    kept = bytearray(100_000)
    barrier.wait()
threads = [threading.Thread(target=work) for _ in range(num_threads)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


def num_arenas(**environment: str) -> int:
    num_threads = 8 * (os.cpu_count() or 1)
    told = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(num_threads)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=PROCESS_S,
    )
    return len(re.findall("<heap ", told.stdout))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_there_are_no_more_arenas_than_cores() -> None:
    assert num_arenas() <= max(2, os.cpu_count() or 1)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_the_environment_decides() -> None:
    assert num_arenas(MALLOC_ARENA_MAX="4") == 4


# Small objects that stay, each behind many that are freed: glibc keeps all of it.
_BURST = """
import asyncio, sys
from server.cli.memory import resident_bytes, return_freed_memory

async def main():
    trimming = asyncio.ensure_future(return_freed_memory(0.05, int(sys.argv[1])))
    await asyncio.sleep(0)
    before = resident_bytes()
    burst = [bytearray(2000) for _ in range(60_000)]
    kept = burst[::100]
    await asyncio.sleep(0.1)  # it may give back what it finds while the burst lasts
    del burst
    after = resident_bytes()
    for _ in range(400):
        if resident_bytes() < before + (after - before) // 2:
            break
        await asyncio.sleep(0.05)
    print(after - before, resident_bytes() - before)
    trimming.cancel()

asyncio.run(main())
"""


@pytest.mark.parametrize("above", [8 << 20, 1 << 40])
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_what_a_burst_has_freed_goes_back_to_the_system(above: int) -> None:
    """Also where it has not grown by so much since the last time, once the process is idle."""
    told = subprocess.run(
        [sys.executable, "-c", _BURST, str(above)], capture_output=True, text=True, check=True, timeout=PROCESS_S
    )
    held, left = map(int, told.stdout.split())
    assert held > 64 << 20
    assert left < held / 2
