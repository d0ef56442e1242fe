"""Memory behind the pages, as the system counts it."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.border.background import CALM_NICE
from engine.step.page_memory import PageMemory
from tests.patience import PATIENCE_S

SYSTEM_PAGE = mmap.PAGESIZE
NUM_LAYERS, NUM_PAGES, PAGE_BYTES, STRETCH = 2, 40, 256 << 10, 8  # a huge page holds 8 pages of a layer

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not Path("/proc/self/pagemap").exists() or SYSTEM_PAGE != 4096,
    reason="only Linux tells where memory is, and larger pages of the system are not asked for",
)


class Pages:
    """Pages of untouched memory, in the place of JAX's arrays."""

    def __init__(self) -> None:
        size = NUM_LAYERS * NUM_PAGES * PAGE_BYTES
        self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.memory.madvise(mmap.MADV_NOHUGEPAGE)  # so that what is counted is what was asked for
        self.bytes = np.frombuffer(self.memory, np.uint8)
        self.data = SimpleNamespace(
            shape=(NUM_LAYERS, NUM_PAGES, 2, 1, 32, 2048),
            nbytes=size,
            unsafe_buffer_pointer=lambda: self.bytes.ctypes.data,
        )

    def backed(self) -> list[list[int]]:
        """Of each layer, the pages that have all of their memory."""
        first = self.bytes.ctypes.data // SYSTEM_PAGE
        with open("/proc/self/pagemap", "rb") as file:
            file.seek(8 * first)
            entries = np.frombuffer(file.read(8 * self.bytes.size // SYSTEM_PAGE), np.uint64)
        has_memory = (entries >> np.uint64(62) != 0).reshape(NUM_LAYERS, NUM_PAGES, -1).all(axis=2)
        return [np.flatnonzero(layer).tolist() for layer in has_memory]


def settled(memory: PageMemory) -> PageMemory:
    """The same, once nothing is being asked for."""
    for thread in threading.enumerate():
        if thread.name == "page memory":
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
    return memory


def as_kv(pages: Pages) -> Any:
    return pages


def test_half_a_stretch_or_more_is_ahead_of_what_was_handed_out() -> None:
    pages = Pages()
    memory = settled(PageMemory(as_kv(pages)))
    for reached, end in ((0, 8), (3, 8), (4, 16), (11, 16), (12, 24), (3, 24), (28, 40), (39, 40)):
        memory.reach(reached)
        settled(memory)
        assert pages.backed() == [list(range(end))] * NUM_LAYERS, f"after page {reached}"
    assert not pages.bytes.any(), "nothing was written"


def test_what_is_written_stays() -> None:
    pages = Pages()
    pages.bytes[::4096] = 7
    settled(PageMemory(as_kv(pages))).reach(39)
    assert (pages.bytes[::4096] == 7).all()


def test_after_its_end_nothing_is_asked_for() -> None:
    pages = Pages()
    memory = settled(PageMemory(as_kv(pages)))
    memory.close()
    memory.reach(30)
    assert pages.backed() == [list(range(STRETCH))] * NUM_LAYERS
    assert all(thread.name != "page memory" for thread in threading.enumerate())


def replace_madvise(monkeypatch: pytest.MonkeyPatch, madvise: Callable[..., int]) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(madvise=madvise))


def test_what_is_reached_while_memory_is_asked_for_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_go, real = threading.Event(), threading.Event(), ctypes.CDLL(None).madvise

    def slow(*arguments: Any) -> int:
        begun.set()
        return int(real(*arguments)) if may_go.wait(PATIENCE_S) else -1

    replace_madvise(monkeypatch, slow)
    pages = Pages()
    memory = PageMemory(as_kv(pages))
    assert begun.wait(PATIENCE_S)
    memory.reach(12)
    may_go.set()
    settled(memory)
    assert pages.backed() == [list(range(24))] * NUM_LAYERS


def test_it_goes_without_a_thread_and_without_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = Pages()

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        memory = PageMemory(as_kv(pages))
        assert pages.backed() == [[]] * NUM_LAYERS
    memory.reach(4)
    settled(memory)
    assert pages.backed() == [list(range(16))] * NUM_LAYERS, "the next time there is a thread"
    calls: list[int] = []
    replace_madvise(monkeypatch, lambda *arguments: calls.append(1) or -1)
    memory.reach(20)
    settled(memory).reach(39)
    assert len(calls) == 1, "what the system has refused it is not asked for again"


def test_its_thread_stands_back(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []

    def note(*arguments: Any) -> int:
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return 0

    replace_madvise(monkeypatch, note)
    settled(PageMemory(as_kv(Pages())))
    assert found == [max(CALM_NICE, os.getpriority(os.PRIO_PROCESS, 0))] * NUM_LAYERS
