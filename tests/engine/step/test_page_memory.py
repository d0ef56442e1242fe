"""Memory behind the pages, as the system counts it."""

from __future__ import annotations

import ctypes
import mmap
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.border.background import CALM_NICE
from engine.step import page_memory
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

    def __init__(self, advice: int = mmap.MADV_NOHUGEPAGE) -> None:  # so that what is counted is what was asked for
        size = NUM_LAYERS * NUM_PAGES * PAGE_BYTES
        self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.memory.madvise(advice)
        self.bytes = np.frombuffer(self.memory, np.uint8)
        self.data = SimpleNamespace(
            shape=(NUM_LAYERS, NUM_PAGES, 2, 1, 32, 2048),
            nbytes=size,
            unsafe_buffer_pointer=lambda: self.bytes.ctypes.data,
        )

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


@pytest.fixture
def begin() -> Iterator[Callable[..., PageMemory]]:
    """Makes the memory of pages, and closes it in the end."""
    made: list[PageMemory] = []

    def make(pages: Pages, *wait: Callable[[], object]) -> PageMemory:
        made.append(PageMemory(as_kv(pages), *wait))
        return made[-1]

    yield make
    for memory in made:
        memory.close()
        assert memory._thread is None or not memory._thread.is_alive()


Begin = Callable[..., PageMemory]


def test_half_a_stretch_or_more_is_ahead_of_what_was_handed_out(begin: Begin) -> None:
    pages = Pages()
    memory = settled(begin(pages))
    for reached, end in ((0, 8), (3, 8), (4, 16), (11, 16), (12, 24), (3, 24), (28, 40), (40, 40)):
        memory.reach(reached)
        settled(memory)
        assert pages.backed() == [list(range(end))] * NUM_LAYERS, f"after {reached} pages"
    assert not pages.bytes.any(), "nothing was written"


def test_the_system_is_asked_for_nothing_before_it_may_be(begin: Begin) -> None:
    pages, may_begin = Pages(), threading.Event()
    memory = begin(pages, may_begin.wait)
    memory.reach(12)
    assert not may_begin.wait(0.05)
    assert pages.backed() == [[]] * NUM_LAYERS
    may_begin.set()
    settled(memory)
    assert pages.backed() == [list(range(24))] * NUM_LAYERS


def test_what_is_closed_before_it_may_begin_asks_for_nothing(begin: Begin) -> None:
    pages, may_begin = Pages(), threading.Event()
    memory = begin(pages, may_begin.wait)
    thread = threading.Timer(0.05, may_begin.set)
    thread.start()
    memory.close()
    thread.join()
    assert pages.backed() == [[]] * NUM_LAYERS


def test_what_is_written_stays(begin: Begin) -> None:
    pages = Pages()
    pages.bytes[::4096] = 7
    memory = begin(pages)
    memory.reach(40)
    settled(memory)
    assert pages.backed() == [list(range(NUM_PAGES))] * NUM_LAYERS
    assert (pages.bytes[::4096] == 7).all()


def joins_pages() -> bool:
    try:
        with mmap.mmap(-1, SYSTEM_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            address = np.frombuffer(memory, np.uint8).ctypes.data
            return page_memory._advise(address, 0, page_memory._MADV_COLLAPSE) == 0 and page_memory._gives_huge_pages()
    except (OSError, BufferError):
        return False


needs_joining = pytest.mark.skipif(not joins_pages(), reason="this system makes no huge pages of small ones")


@needs_joining
def test_a_first_request_waits_for_no_huge_page(begin: Begin) -> None:
    pages, may_begin = Pages(mmap.MADV_HUGEPAGE), threading.Event()
    memory = begin(pages, may_begin.wait)
    written = pages.bytes[:: NUM_PAGES * PAGE_BYTES]  # the first byte of each layer
    written[:] = 7
    assert pages.system_pages().sum() == NUM_LAYERS
    memory.reach(2)
    may_begin.set()
    settled(memory)
    assert [layer[:STRETCH] for layer in pages.backed()] == [list(range(STRETCH))] * NUM_LAYERS
    assert pages.huge_bytes() >= NUM_LAYERS * page_memory._HUGE_PAGE
    assert (written == 7).all()
    assert pages.bytes.sum() == 7 * NUM_LAYERS


@needs_joining
def test_pages_that_lie_askew_are_joined_within_the_array(begin: Begin) -> None:
    pages = Pages(mmap.MADV_HUGEPAGE)
    askew = SimpleNamespace(
        data=SimpleNamespace(
            shape=(2, 39, 2, 1, 32, 2048),
            nbytes=2 * 39 * PAGE_BYTES,
            unsafe_buffer_pointer=lambda: pages.bytes.ctypes.data + PAGE_BYTES // 2 + 64,
        )
    )
    may_begin = threading.Event()
    pages.bytes[::PAGE_BYTES] = 7
    before = pages.bytes.copy()
    memory = begin(askew, may_begin.wait)
    may_begin.set()
    memory.reach(39)
    settled(memory)
    assert (pages.bytes == before).all()
    first, num_pages = PAGE_BYTES // 2 // SYSTEM_PAGE, 2 * 39 * PAGE_BYTES // SYSTEM_PAGE
    assert pages.system_pages()[first : first + num_pages].all()


@pytest.mark.parametrize("setting", ["always madvise [never]\n", None])
def test_huge_pages_are_not_made_against_the_will_of_the_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, begin: Begin, setting: str | None
) -> None:
    advices: set[int] = set()

    def note(begin: int, size: int, advice: int) -> int:
        advices.add(advice)
        return 0

    file = tmp_path / "enabled"
    if setting is not None:
        file.write_text(setting)
    monkeypatch.setattr(page_memory, "_HUGE_PAGES_SETTING", file)
    monkeypatch.setattr(page_memory, "_advise", note)
    settled(begin(Pages()))
    assert advices == {page_memory._MADV_POPULATE_WRITE}


def test_one_thread_serves_all_calls_and_ends_with_the_object(begin: Begin) -> None:
    pages = Pages()
    memory = settled(begin(pages))
    thread = memory._thread
    memory.reach(4)
    settled(memory)
    assert thread is not None
    assert memory._thread is thread
    assert thread.is_alive()
    memory.close()
    assert not thread.is_alive()
    memory.reach(30)
    memory.close()
    assert pages.backed() == [list(range(2 * STRETCH))] * NUM_LAYERS


def replace_madvise(monkeypatch: pytest.MonkeyPatch, madvise: Callable[..., int]) -> None:
    """Replaces that of which memory is asked for; otherwise the system is an old one."""

    def only_populate(address: ctypes.c_void_p, size: ctypes.c_size_t, advice: int) -> int:
        return madvise(address, size, advice) if advice == page_memory._MADV_POPULATE_WRITE else -1

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(madvise=only_populate))


def test_what_is_reached_while_memory_is_asked_for_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch, begin: Begin
) -> None:
    begun, may_go, real = threading.Event(), threading.Event(), ctypes.CDLL(None).madvise

    def slow(*arguments: Any) -> int:
        begun.set()
        return int(real(*arguments)) if may_go.wait(PATIENCE_S) else -1

    replace_madvise(monkeypatch, slow)
    pages = Pages()
    memory = begin(pages)
    assert begun.wait(PATIENCE_S)
    memory.reach(12)
    may_go.set()
    settled(memory)
    assert pages.backed() == [list(range(24))] * NUM_LAYERS


def test_no_call_asks_for_more_than_a_stretch_of_a_layer(monkeypatch: pytest.MonkeyPatch, begin: Begin) -> None:
    """While the system is in a call, other threads wait that map memory."""
    sizes: list[int] = []
    replace_madvise(monkeypatch, lambda address, size, advice: sizes.append(size.value) or 0)
    memory = begin(Pages())
    memory.reach(36)  # of a prompt that takes nearly all pages at once
    settled(memory)
    assert sum(sizes) == NUM_LAYERS * NUM_PAGES * PAGE_BYTES
    assert max(sizes) <= STRETCH * PAGE_BYTES


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_without_a_thread_pages_get_memory_as_they_are_written(
    monkeypatch: pytest.MonkeyPatch, begin: Begin, error: Exception
) -> None:
    pages = Pages()

    def refuse(self: threading.Thread) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        memory = begin(pages)
    memory.reach(4)
    memory.close()
    assert pages.backed() == [[]] * NUM_LAYERS


def test_the_engine_thread_starts_no_thread(monkeypatch: pytest.MonkeyPatch, begin: Begin) -> None:
    """A thread that starts another waits until that one runs, however busy the cores are."""
    pages = Pages()
    memory = settled(begin(pages))
    started: list[threading.Thread] = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", started.append)
        memory.reach(4)
    settled(memory)
    assert started == []
    assert pages.backed() == [list(range(16))] * NUM_LAYERS


def test_what_cannot_be_told_for_want_of_memory_is_told_with_the_next_page(
    monkeypatch: pytest.MonkeyPatch, begin: Begin
) -> None:
    is_full = False

    class Full(queue.SimpleQueue[int | None]):
        def put(self, item: int | None, block: bool = True, timeout: float | None = None) -> None:
            if is_full:
                raise MemoryError
            super().put(item)

    monkeypatch.setattr(page_memory, "queue", SimpleNamespace(SimpleQueue=Full))
    pages = Pages()
    memory = settled(begin(pages))
    is_full = True
    memory.reach(4)
    is_full = False
    memory.reach(5)
    settled(memory)
    assert pages.backed() == [list(range(16))] * NUM_LAYERS


@pytest.mark.parametrize("error", [None, MemoryError(), ctypes.ArgumentError("no such type")])
def test_what_the_system_has_refused_it_is_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, begin: Begin, error: Exception | None
) -> None:
    calls: list[int] = []

    def refuse(*arguments: Any) -> int:
        calls.append(1)
        if error is not None:
            raise error
        return -1

    replace_madvise(monkeypatch, refuse)
    memory = settled(begin(Pages()))
    memory.reach(20)
    settled(memory).reach(40)
    settled(memory)
    assert len(calls) == 1


def test_a_call_that_hangs_does_not_keep_those_who_close(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_go = threading.Event(), threading.Event()

    def hang(*arguments: Any) -> int:
        begun.set()
        may_go.wait(PATIENCE_S)
        return 0

    replace_madvise(monkeypatch, hang)
    monkeypatch.setattr(page_memory, "_CLOSE_SECONDS", 0.01)
    memory = PageMemory(as_kv(Pages()))
    assert begun.wait(PATIENCE_S)
    memory.reach(40)
    memory.close()
    thread = memory._thread
    assert thread is not None
    assert thread.is_alive()
    may_go.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_its_thread_stands_back(monkeypatch: pytest.MonkeyPatch, begin: Begin) -> None:
    found: list[int] = []

    def note(*arguments: Any) -> int:
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return 0

    replace_madvise(monkeypatch, note)
    settled(begin(Pages()))
    assert found == [max(CALM_NICE, os.getpriority(os.PRIO_PROCESS, 0))] * NUM_LAYERS
