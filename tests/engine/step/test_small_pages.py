"""The first pages begin as small ones of the system and become huge ones, and stay small nowhere."""

from __future__ import annotations

import mmap
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.step import page_memory
from engine.step.page_memory import PageMemory
from tests.engine.step.untouched_pages import (
    NUM_LAYERS,
    NUM_PAGES,
    PAGE_BYTES,
    STRETCH,
    SYSTEM_PAGE,
    Begin,
    Pages,
    as_kv,
    needs_pagemap,
    settled,
)
from tests.patience import PATIENCE_S

pytestmark = needs_pagemap


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
        settled(PageMemory(as_kv(SimpleNamespace(data=data, scales=None)))).close()
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
