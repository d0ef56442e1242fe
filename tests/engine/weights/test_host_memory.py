"""Arrays that the device takes over: zeros, aligned, and the device's own memory afterwards."""

import ctypes
import mmap
import platform
from pathlib import Path

import jax
import numpy as np
import pytest

from engine.weights.host_memory import give_back_freed, large_array, put_in_huge_pages


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, "bfloat16"], ids=str)
def test_the_device_takes_it_over_as_it_is(dtype):
    array = large_array((3, 1000), jax.numpy.dtype(dtype))
    assert not array.any()
    assert array.ctypes.data % mmap.PAGESIZE == 0
    on_device = jax.device_put(array)
    assert on_device.unsafe_buffer_pointer() == array.ctypes.data


def test_of_nothing():
    assert large_array((0, 4), np.float32).shape == (0, 4)


def test_a_system_without_huge_pages(monkeypatch):
    class Memory(mmap.mmap):
        def madvise(self, advice):
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", Memory)
    assert large_array((4, 4), np.float32).shape == (4, 4)


def test_memory_in_use_goes_into_huge_pages_with_what_it_holds():
    array = np.arange(3 << 20, dtype=np.uint32)
    put_in_huge_pages(array.ctypes.data, array.nbytes)
    assert (array == np.arange(3 << 20)).all()


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system has no such advice")
def test_only_whole_huge_pages_within_the_memory_are_moved(monkeypatch):
    asked = []

    class Library:
        def __init__(self, name):
            pass

        def madvise(self, address, size, advice):
            asked.append((address.value, size.value, advice))

    monkeypatch.setattr(ctypes, "CDLL", Library)
    huge = 2 << 20
    put_in_huge_pages(huge + 4096, 3 * huge)
    assert [(start, size) for start, size, _ in asked] == [(2 * huge, 2 * huge)] * 2
    put_in_huge_pages(huge + 4096, 2 * huge - 4097)
    assert len(asked) == 2, "there is no whole one"


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library has no malloc_trim")
def test_what_was_freed_goes_back_to_the_system():
    pieces = [bytes(60_000) + b"x" for _ in range(600)]  # small enough for the heap, 36 MB in all
    kept = pieces[-1]  # above the others, so that freeing them alone does not shrink the heap
    del pieces
    before = resident_bytes()
    give_back_freed()
    assert resident_bytes() < before - 10_000_000
    assert kept.endswith(b"x")
