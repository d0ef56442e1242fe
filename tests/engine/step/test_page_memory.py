"""Memory behind the pages, as the system counts it."""

from __future__ import annotations

import ctypes
import os
import queue
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.interface.background import CALM_NICE
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


def test_half_a_stretch_or_more_is_ahead_of_what_was_handed_out(begin: Begin) -> None:
    pages = Pages()
    memory = settled(begin(pages))
    for reached, end in ((0, 8), (3, 8), (4, 16), (11, 16), (12, 24), (3, 24), (28, 40), (40, 40)):
        memory.reach(reached)
        settled(memory)
        assert pages.backed() == [list(range(end))] * NUM_LAYERS, f"after {reached} pages"
    assert not pages.bytes.any(), "nothing was written"


@pytest.mark.parametrize("page_bytes", [768, SYSTEM_PAGE, 2 * SYSTEM_PAGE])
def test_scales_have_memory_where_their_pages_do(begin: Begin, page_bytes: int) -> None:
    scales = Pages(page_bytes=page_bytes)
    pages = Pages(scales=scales)
    memory = settled(begin(pages))
    for reached, end in ((0, STRETCH), (12, 24), (NUM_PAGES, NUM_PAGES)):
        memory.reach(reached)
        settled(memory)
        wanted = np.zeros(scales.bytes.size, bool)
        for first in range(0, NUM_LAYERS * NUM_PAGES, NUM_PAGES):
            wanted[first * page_bytes : (first + end) * page_bytes] = True
        in_part = [wanted[at : at + SYSTEM_PAGE].any() for at in range(0, wanted.size, SYSTEM_PAGE)]
        assert scales.system_pages().tolist() == in_part
        assert pages.backed() == [list(range(end))] * NUM_LAYERS


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
