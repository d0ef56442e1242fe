"""Pages whose memory nobody has touched, as the system counts it, and the memory of pages over them."""

from __future__ import annotations

import mmap
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.step.page_memory import PageMemory
from tests.patience import PATIENCE_S

SYSTEM_PAGE = mmap.PAGESIZE
NUM_LAYERS, NUM_PAGES, PAGE_BYTES, STRETCH = 2, 40, 256 << 10, 8  # a huge page holds 8 pages of a layer

needs_pagemap = pytest.mark.skipif(
    sys.platform != "linux" or not Path("/proc/self/pagemap").exists() or SYSTEM_PAGE != 4096,
    reason="only Linux tells where memory is, and larger pages of the system are not asked for",
)


Begin = Callable[..., PageMemory]


class Pages:
    """Pages of untouched memory, in the place of JAX's arrays."""

    def __init__(
        self,
        advice: int = mmap.MADV_NOHUGEPAGE,  # so that what is counted is what was asked for
        page_bytes: int = PAGE_BYTES,
        scales: Pages | None = None,
    ) -> None:
        size = NUM_LAYERS * NUM_PAGES * page_bytes
        self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.memory.madvise(advice)
        self.bytes = np.frombuffer(self.memory, np.uint8)
        self.data = SimpleNamespace(
            shape=(NUM_LAYERS, NUM_PAGES, 2, 1, 32, 2048),
            nbytes=size,
            unsafe_buffer_pointer=lambda: self.bytes.ctypes.data,
        )
        self.scales = None if scales is None else scales.data

    def backed(self) -> list[list[int]]:
        """Of each layer, the pages that have all of their memory."""
        has_memory = self.system_pages().reshape(NUM_LAYERS, NUM_PAGES, -1).all(axis=2)
        return [np.flatnonzero(layer).tolist() for layer in has_memory]

    def system_pages(self) -> np.ndarray:
        """Of each page of the system, whether it has memory."""
        with open("/proc/self/pagemap", "rb") as file:
            file.seek(8 * (self.bytes.ctypes.data // SYSTEM_PAGE))
            entries = np.frombuffer(file.read(8 * self.bytes.size // SYSTEM_PAGE), np.uint64)
        return entries >> np.uint64(62) != 0

    def huge_bytes(self) -> int:
        """How much of its memory is in huge pages."""
        total, is_inside, first = 0, False, self.bytes.ctypes.data
        for line in Path("/proc/self/smaps").read_text().splitlines():
            name = line.split(maxsplit=1)[0]
            if not name.endswith(":"):
                begin, end = (int(number, 16) for number in name.split("-"))
                is_inside = begin < first + self.bytes.size and first < end
            elif is_inside and name == "AnonHugePages:":
                total += int(line.split()[1]) << 10
        return total


def settled(memory: PageMemory) -> PageMemory:
    """The same, once nothing is being asked for."""
    thread = memory._thread
    memory._news.put(0)  # asks for nothing; once it is taken, what was wanted before has been asked for
    given_up = time.monotonic() + PATIENCE_S
    while thread is not None and thread.is_alive() and not memory._news.empty():
        assert time.monotonic() < given_up
        time.sleep(0.001)
    return memory


def as_kv(pages: Pages) -> Any:
    return pages
