from __future__ import annotations

import os
import platform
import re
import subprocess
import sys

import pytest

# Threads that run at once and allocate; then glibc tells of its arenas on standard output.
_PROGRAM = """
import ctypes, sys, threading
from server.cli.allocator import limit_arenas
limit_arenas()
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
        timeout=60,
    )
    return len(re.findall("<heap ", told.stdout))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_there_are_no_more_arenas_than_cores() -> None:
    assert num_arenas() <= max(2, os.cpu_count() or 1)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_the_environment_decides() -> None:
    assert num_arenas(MALLOC_ARENA_MAX="4") == 4
