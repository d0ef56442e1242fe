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
from hypothesis import given, settings
from hypothesis import strategies as st

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
    """Whether this system makes a huge page of a small one; it may know the advice and refuse it."""
    if not page_memory._gives_huge_pages():
        return False
    size = page_memory._HUGE_PAGE
    memory = np.frombuffer(mmap.mmap(-1, 2 * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    begin = -(-memory.ctypes.data // size) * size
    page_memory._advise(begin, size, mmap.MADV_NOHUGEPAGE)
    memory[begin - memory.ctypes.data] = 1
    page_memory._advise(begin, size, mmap.MADV_HUGEPAGE)
    return page_memory._advise(begin, size, page_memory._MADV_COLLAPSE) == 0


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


class Advised:
    """Takes notes in the place of the system, which refuses one advice from the `refused_from`th time on."""

    def __init__(self, refused: int = 0, refused_from: int = 0) -> None:
        self.notes: list[tuple[int, int, int]] = []  # address, bytes, advice
        self._refused, self._num_granted = refused, refused_from

    def __call__(self, begin: int, size: int, advice: int) -> int:
        if advice == self._refused:
            self._num_granted -= 1
            if self._num_granted < 0:
                return -1
        if size > 0:
            self.notes.append((begin, size, advice))
        return 0

    def of(self, *advices: int) -> list[tuple[int, int]]:
        return [(begin, size) for begin, size, advice in self.notes if advice in advices]

    def last_of_each(self) -> set[int]:
        """The advice that holds in the end where small or huge pages were asked for."""
        last = {begin: advice for begin, _, advice in self.notes if advice in SMALL_OR_HUGE}
        return set(last.values())


SMALL_OR_HUGE = (page_memory._MADV_HUGEPAGE, page_memory._MADV_NOHUGEPAGE)


@pytest.fixture
def gives_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_memory, "_gives_huge_pages", lambda: True)


@pytest.mark.usefixtures("gives_huge_pages")
@settings(deadline=None, max_examples=60)
@given(
    offset=st.integers(0, 3 * (2 << 20) // 64),
    num_layers=st.sampled_from([1, 2, 3, 16]),
    num_pages=st.sampled_from([1, 2, 7, 8, 9, 39, 600]),
    page_bytes=st.sampled_from([64, 1536, 4096, 5000, 98304, 256 << 10, 3 << 19, 2 << 20, 5 << 20]),
)
def test_joined_are_the_huge_pages_of_the_array_with_a_first_stretch(
    offset: int, num_layers: int, num_pages: int, page_bytes: int
) -> None:
    huge_page = page_memory._HUGE_PAGE
    address, size = 0x7F0000000000 + 64 * offset, num_layers * num_pages * page_bytes
    data = SimpleNamespace(
        shape=(num_layers, num_pages, 2, 1, 1, 1), nbytes=size, unsafe_buffer_pointer=lambda: address
    )
    advised = Advised()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_memory, "_advise", advised)
        settled(PageMemory(as_kv(SimpleNamespace(data=data)))).close()
    layers = [address + layer * num_pages * page_bytes for layer in range(num_layers)]
    stretch = min(-(-huge_page // page_bytes), num_pages) * page_bytes
    expected = {
        begin
        for first in layers
        for begin in range(first // huge_page * huge_page, first + stretch, huge_page)
        if address <= begin and begin + huge_page <= address + size
    }
    assert set(advised.of(page_memory._MADV_COLLAPSE)) == {(begin, huge_page) for begin in expected}
    extents = [(first // SYSTEM_PAGE * SYSTEM_PAGE, first + stretch) for first in layers]
    for advice in (*SMALL_OR_HUGE, page_memory._MADV_POPULATE_WRITE):
        found = [(begin, begin + size) for begin, size in advised.of(advice)]
        # From the last layer to the first, for a step goes the other way.
        assert found == (extents if advice == page_memory._MADV_NOHUGEPAGE else extents[::-1])
    assert advised.last_of_each() == {page_memory._MADV_HUGEPAGE}


@pytest.mark.usefixtures("gives_huge_pages")
@pytest.mark.parametrize(
    "advised",
    [
        Advised(page_memory._MADV_POPULATE_WRITE),
        Advised(page_memory._MADV_NOHUGEPAGE, 1),
        Advised(page_memory._MADV_POPULATE_WRITE, 1),
        Advised(page_memory._MADV_COLLAPSE, 1),  # the system knows it, but cannot do it
        None,
    ],
    ids=["no memory", "one layer small", "no memory for the second", "not joined", "no thread"],
)
def test_nothing_stays_small_where_the_system_or_the_thread_fails(
    monkeypatch: pytest.MonkeyPatch, begin: Begin, advised: Advised | None
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    if advised is None:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        advised = Advised()
    monkeypatch.setattr(page_memory, "_advise", advised)
    settled(begin(Pages()))
    assert advised.of(page_memory._MADV_NOHUGEPAGE)
    assert advised.last_of_each() == {page_memory._MADV_HUGEPAGE}


@pytest.mark.usefixtures("gives_huge_pages")
def test_nothing_is_asked_for_behind_a_close_that_falls_into_a_joining(
    monkeypatch: pytest.MonkeyPatch, begin: Begin
) -> None:
    joining, may_go, advised = threading.Event(), threading.Event(), Advised()

    def slow(begin: int, size: int, advice: int) -> int:
        if advice == page_memory._MADV_COLLAPSE and size > 0:
            joining.set()
            assert may_go.wait(PATIENCE_S)
        return advised(begin, size, advice)

    monkeypatch.setattr(page_memory, "_advise", slow)
    monkeypatch.setattr(page_memory, "_CLOSE_SECONDS", 0.01)
    memory = begin(Pages())
    assert joining.wait(PATIENCE_S)
    memory.close()
    may_go.set()
    assert memory._thread is not None
    memory._thread.join(PATIENCE_S)
    assert advised.of(page_memory._MADV_POPULATE_WRITE) == []
    assert len(advised.of(page_memory._MADV_HUGEPAGE)) == 1  # of the layer that was being joined


@pytest.mark.parametrize(
    ("of_all", "of_size", "gives"),
    [
        ("always madvise [never]\n", None, False),
        (None, None, False),
        ("always [madvise] never\n", None, True),
        ("always madvise [never]\n", "always [inherit] madvise never\n", False),
        ("[always] madvise never\n", "always [inherit] madvise never\n", True),
        ("[always] madvise never\n", "always inherit madvise [never]\n", False),
        ("always madvise [never]\n", "always inherit [madvise] never\n", True),
    ],
)
def test_huge_pages_are_not_made_against_the_will_of_the_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, begin: Begin, of_all: str | None, of_size: str | None, gives: bool
) -> None:
    (tmp_path / "hugepages-2048kB").mkdir()
    for name, setting in (("enabled", of_all), ("hugepages-2048kB/enabled", of_size)):
        if setting is not None:
            (tmp_path / name).write_text(setting)
    advised = Advised()
    monkeypatch.setattr(page_memory, "_HUGE_PAGES_FOLDER", tmp_path)
    monkeypatch.setattr(page_memory, "_advise", advised)
    settled(begin(Pages()))
    assert bool(advised.of(*SMALL_OR_HUGE, page_memory._MADV_COLLAPSE)) == gives
    assert len(advised.of(page_memory._MADV_POPULATE_WRITE)) == NUM_LAYERS


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


def replace_populate(monkeypatch: pytest.MonkeyPatch, populate: Callable[[int, int], int]) -> None:
    """Replaces what asks for memory; all other advice is refused, as by an old system.

    Args:
        populate: of an address and a number of bytes; not 0 where it is refused.
    """

    def advise(begin: int, size: int, advice: int) -> int:
        return populate(begin, size) if advice == page_memory._MADV_POPULATE_WRITE else -1

    monkeypatch.setattr(page_memory, "_advise", advise)


def test_what_is_reached_while_memory_is_asked_for_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch, begin: Begin
) -> None:
    begun, may_go, real = threading.Event(), threading.Event(), page_memory._advise

    def slow(begin: int, size: int) -> int:
        begun.set()
        return real(begin, size, page_memory._MADV_POPULATE_WRITE) if may_go.wait(PATIENCE_S) else -1

    replace_populate(monkeypatch, slow)
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
    replace_populate(monkeypatch, lambda begin, size: sizes.append(size) or 0)
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

    replace_populate(monkeypatch, refuse)
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

    replace_populate(monkeypatch, hang)
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

    replace_populate(monkeypatch, note)
    settled(begin(Pages()))
    assert found == [max(CALM_NICE, os.getpriority(os.PRIO_PROCESS, 0))] * NUM_LAYERS
