"""Memory behind the pages, there before a step writes to them."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading

from cache.storage import KVPages
from engine.border.background import stand_back

_MADV_POPULATE_WRITE = 23  # since Linux 5.14; the module mmap does not know it
_HUGE_PAGE = 2 << 20  # bytes
_SYSTEM_PAGE = 4096  # bytes; where the system's are larger, it refuses, and pages get memory as they are written


class PageMemory:
    """Has the system put memory behind the pages of a CPU shortly before they are used for the first time.

    The arrays of pages begin without memory, so that an engine takes no more than its requests need. The system then
    clears memory in the middle of the step that is the first to write to a page. With huge pages that is 2 MiB for each
    layer at once, and in a virtual machine, whose host has to find the memory too, such a step of a small model took
    0.2 s in the place of 0.06. So a thread that stands behind the others asks for it (`madvise` with
    MADV_POPULATE_WRITE, which changes no content), in stretches of as many pages as make a huge page in each layer: for
    the first one at once, and for each other one when half of the one before is in use. Where the system refuses, pages
    get their memory when they are written.
    """

    def __init__(self, pages: KVPages) -> None:
        """Begins with the first pages.

        Args:
            pages: of one device that is the host; no program may be using them.
        """
        shape = pages.data.shape
        self._address = pages.data.unsafe_buffer_pointer()
        self._num_layers, self._num_pages = shape[:2]
        self._page_bytes = pages.data.nbytes // (self._num_layers * self._num_pages)  # of one layer
        self._stretch = -(-_HUGE_PAGE // self._page_bytes)
        self._wanted = self._backed = 0  # pages, from the first on
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_over = not sys.platform.startswith("linux")
        self.reach(0)

    def reach(self, num_pages: int) -> None:
        """Takes note that so many pages, from the first on, are in use or have been; takes microseconds."""
        num_begun = (num_pages + self._stretch // 2) // self._stretch  # stretches of which half is in use
        wanted = min((num_begun + 1) * self._stretch, self._num_pages)
        if wanted <= self._wanted or self._is_over:
            return
        with self._lock:
            self._wanted = wanted
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name="page memory", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # the system gives no thread
                self._thread = None

    def close(self) -> None:
        """Has nothing asked for any more. The pages may go afterwards."""
        with self._lock:
            self._is_over = True
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        stand_back()
        while True:
            with self._lock:
                first, end = self._backed, self._wanted
                if first >= end or self._is_over:
                    self._thread = None
                    return
            if not self._populate(first, end):
                self._is_over = True
            self._backed = end

    def _populate(self, first: int, end: int) -> bool:
        """Asks for the memory of some pages in every layer, and returns whether all was given."""
        with contextlib.suppress(OSError, AttributeError):  # a system without such a library
            madvise = ctypes.CDLL(None).madvise
            for layer in range(self._num_layers):
                start = self._address + (layer * self._num_pages + first) * self._page_bytes
                begin = start // _SYSTEM_PAGE * _SYSTEM_PAGE
                size = start + (end - first) * self._page_bytes - begin
                if self._is_over or madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), _MADV_POPULATE_WRITE) != 0:
                    return False
            return True
        return False
