"""Populates the memory of KV pages on a CPU before a step writes to them."""

from __future__ import annotations

import contextlib
import ctypes
import queue
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jax

from cache.storage import KVPages
from engine.interface.background import stand_back

# Advice for `madvise` (its manual page). The module mmap knows the first two on Linux alone, and the others nowhere.
_MADV_HUGEPAGE = 14
_MADV_NOHUGEPAGE = 15
_MADV_POPULATE_WRITE = 23  # since Linux 5.14
_MADV_COLLAPSE = 25  # since Linux 6.1
_HUGE_PAGES_FOLDER = Path("/sys/kernel/mm/transparent_hugepage")  # of Linux, for its settings
_HUGE_PAGE = 2 << 20  # bytes
_SYSTEM_PAGE = 4096  # bytes; where the system's are larger, it refuses, and pages get memory as they are written
_CLOSE_SECONDS = 5.0  # the wait for a call of the system, which may be slow to find memory


class PageMemory:
    """Asks the system for the memory of pages shortly before they are used for the first time.

    The array of keys and values begins without memory, which the system then clears in the middle of the step that
    first writes to a page: with huge pages 2 MiB a layer, 0.2 s instead of 0.06 for a step of a small model in a
    virtual machine. So a thread of low priority asks for it (`madvise` with MADV_POPULATE_WRITE, which changes no
    content), in stretches that make a huge page in each layer: the first at once, each other one when half of the one
    before is in use. Where the system refuses, pages get their memory when they are written. Scales of int8 pages are
    populated with them.

    A first request may come before that thread has begun. So the first stretch is of small system pages until then, and
    the thread has the system join them to huge pages (MADV_COLLAPSE, which changes no content either).

    It knows the arrays by their addresses alone, and relies on it that they stay there: each step donates them to its
    program. Were one to move, the calls would be refused or find other memory of this process, unchanged by them.
    """

    def __init__(self, pages: KVPages, wait: Callable[[], object] = lambda: None) -> None:
        """Begins with the first pages, of one device that is the host; no program may be using them.

        The thread calls `wait` before it asks the system, because threads that need new memory wait meanwhile.
        """
        self._wait = wait
        self._num_layers, self._num_pages = pages.data.shape[:2]
        self._data = _Array.of(pages.data)
        self._scales = [] if pages.scales is None else [_Array.of(pages.scales)]
        self._stretch = -(-_HUGE_PAGE // self._data.page_bytes)
        self._wanted = 0  # pages, from the first on
        self._begins_small = False  # whether the first stretch is of small system pages
        self._news: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # each value of `_wanted`; None: the end
        self._is_over = not sys.platform.startswith("linux")
        self._thread: threading.Thread | None = None
        if self._is_over:
            return
        self._begin_small()
        try:
            thread = threading.Thread(target=self._run, name="page memory", daemon=True)
            thread.start()
        except (RuntimeError, MemoryError):
            self._give_up()
            return
        self._thread = thread
        self.reach(0)

    def reach(self, num_pages: int) -> None:
        """Notes that the first `num_pages` pages are in use or have been. Never waits and never raises."""
        num_begun = (num_pages + self._stretch // 2) // self._stretch  # stretches of which half is in use
        wanted = min((num_begun + 1) * self._stretch, self._num_pages)
        if wanted <= self._wanted or self._is_over:
            return
        try:
            self._news.put(wanted)
        except MemoryError:
            return  # the next page that is reached asks again
        self._wanted = wanted

    def close(self) -> None:
        """Ends the thread; the pages may be freed afterwards. Idempotent; never raises."""
        self._is_over = True
        with contextlib.suppress(MemoryError):  # then the thread waits for ever, but asks for nothing
            self._news.put(None)
        if self._thread is not None:
            # A call that takes longer is harmless to whatever lies at these addresses by then.
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        stand_back()
        self._wait()
        backed = 0  # pages, from the first on
        while backed < self._num_pages:
            wanted = self._news.get()
            if wanted is None:
                return
            while backed < wanted and not self._is_over:
                # One stretch at a time: other threads that need new memory wait while the system is in such a call.
                end = min(wanted, backed + self._stretch)
                if not self._populate(backed, end):
                    if not self._is_over:  # else the pages may have gone
                        self._give_up()
                    return
                backed = end

    def _give_up(self) -> None:
        """Stops, and lets the system make huge pages of small ones by itself."""
        self._is_over = True
        if not self._begins_small:
            return
        self._begins_small = False
        with contextlib.suppress(Exception):
            for layer in range(self._num_layers):
                _advise(*self._first_stretch(layer), _MADV_HUGEPAGE)

    def _populate(self, first: int, end: int) -> bool:
        """Asks for the memory of some pages in every layer, and returns whether all was given."""
        with contextlib.suppress(Exception):  # whatever is wrong here, pages get their memory when they are written
            # A step goes from the first layer to the last. So it meets this thread once, and does not follow it from
            # layer to layer.
            for layer in reversed(range(self._num_layers)):
                begin, size = self._data.extent(layer, first, end)
                if first == 0 and self._begins_small and not self._is_over:
                    self._join(begin, size)
                extents = [(begin, size), *(scales.extent(layer, first, end) for scales in self._scales)]
                for extent in extents:
                    if self._is_over or _advise(*extent, _MADV_POPULATE_WRITE) != 0:
                        return False
            return True
        return False

    def _begin_small(self) -> None:
        """Has the first stretch of each layer begin with small system pages, where they can be joined later."""
        with contextlib.suppress(Exception):
            # Advice on no bytes tests whether the system supports it.
            begin, _ = self._first_stretch(0)
            if not _gives_huge_pages() or _advise(begin, 0, _MADV_COLLAPSE) != 0:
                return
            self._begins_small = True  # also where only some layers do
            for layer in range(self._num_layers):
                _advise(*self._first_stretch(layer), _MADV_NOHUGEPAGE)

    def _join(self, begin: int, size: int) -> None:
        """Makes huge pages of small ones; what has no memory yet stays so, and what the system refuses stays small."""
        _advise(begin, size, _MADV_HUGEPAGE)
        first = self._data.address
        array_end = first + self._num_layers * self._num_pages * self._data.page_bytes
        huge_page = max(begin, first + _HUGE_PAGE - 1) // _HUGE_PAGE * _HUGE_PAGE
        while huge_page < begin + size and huge_page + _HUGE_PAGE <= array_end and not self._is_over:
            _advise(huge_page, _HUGE_PAGE, _MADV_COLLAPSE)  # one at a time, because one without memory is refused
            huge_page += _HUGE_PAGE

    def _first_stretch(self, layer: int) -> tuple[int, int]:
        return self._data.extent(layer, 0, min(self._stretch, self._num_pages))


@dataclass(frozen=True)
class _Array:
    """The address and sizes of an array of pages, [layer, page, ...]."""

    address: int
    num_pages: int
    page_bytes: int  # of one layer

    @staticmethod
    def of(array: jax.Array) -> _Array:
        num_layers, num_pages = array.shape[:2]
        return _Array(array.unsafe_buffer_pointer(), num_pages, array.nbytes // (num_layers * num_pages))

    def extent(self, layer: int, first: int, end: int) -> tuple[int, int]:
        """The address and size in bytes of some pages of a layer, in whole system pages."""
        start = self.address + (layer * self.num_pages + first) * self.page_bytes
        begin = start // _SYSTEM_PAGE * _SYSTEM_PAGE
        return begin, start + (end - first) * self.page_bytes - begin


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _advise(begin: int, size: int, advice: int) -> int:
    """`madvise`; not 0 where the system refuses. It does not hold the interpreter lock."""
    return int(_library().madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), advice))


def _gives_huge_pages() -> bool:
    """Whether the system gives huge pages on request, by the setting of the size or for all sizes."""
    of_size = _HUGE_PAGES_FOLDER / "hugepages-2048kB" / "enabled"
    setting = of_size.read_text(encoding="ascii") if of_size.exists() else "[inherit]"
    if "[inherit]" in setting:
        setting = (_HUGE_PAGES_FOLDER / "enabled").read_text(encoding="ascii")
    return "[never]" not in setting
