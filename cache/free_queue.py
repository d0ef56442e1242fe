"""The queue of pages that may be handed out, in eviction order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cache.page import CachePage


class FreeCachePageQueue:
    """A doubly linked list through the pages themselves: O(1) removal from the middle, no allocation.

    Order of eviction, front first: pages without a hash (their content is of no use to anyone),
    then least recently used; of pages released together, the tail of a chain before its head,
    because a tail is useless without its head. Who releases a request's pages passes them
    tail first; this class only keeps the order in which it is told.
    """

    __slots__ = ("_head", "_tail", "num_free_pages")

    def __init__(self, pages: Iterable[CachePage]) -> None:
        # Sentinels spare every operation the question whether a neighbour exists.
        self._head = CachePage(-1)
        self._tail = CachePage(-1)
        self._head.next_free_page = self._tail
        self._tail.prev_free_page = self._head
        self.num_free_pages = 0
        for page in pages:
            self.append(page)

    def append(self, page: CachePage) -> None:
        """Puts a page at the back: it is evicted last.

        Raises:
            ValueError: the page is in the queue already.
        """
        before = self._tail.prev_free_page
        assert before is not None
        if page.prev_free_page is not None:
            raise ValueError(f"page {page.page_id} is in the free queue already")
        page.prev_free_page = before
        page.next_free_page = self._tail
        before.next_free_page = self._tail.prev_free_page = page
        self.num_free_pages += 1

    def append_n(self, pages: Sequence[CachePage]) -> None:
        """Puts pages at the back, in their order. None of them may be in the queue: it is not looked for."""
        before = self._tail.prev_free_page
        assert before is not None
        self._link(before, pages, self._tail)

    def appendleft_n(self, pages: Sequence[CachePage]) -> None:
        """Puts pages at the front, the first of them foremost. None may be in the queue: it is not looked for."""
        after = self._head.next_free_page
        assert after is not None
        self._link(self._head, pages, after)

    def popleft(self) -> CachePage:
        """Takes the first page.

        Raises:
            IndexError: the queue is empty.
        """
        page = self._head.next_free_page
        assert page is not None
        if page is self._tail:
            raise IndexError("no free page is left")
        self.remove(page)
        return page

    def popleft_n(self, n: int) -> list[CachePage]:
        """Takes the first n pages.

        Raises:
            IndexError: fewer than n pages are free; none is taken.
        """
        if n > self.num_free_pages:
            raise IndexError(f"{n} free pages are asked for, {self.num_free_pages} are left")
        pages = []
        page: Any = self._head.next_free_page  # a page at each of the n places: the count says so
        for _ in range(n):
            pages.append(page)
            page.prev_free_page = None
            after = page.next_free_page
            page.next_free_page = None
            page = after
        self._head.next_free_page = page
        page.prev_free_page = self._head
        self.num_free_pages -= n
        return pages

    def remove(self, page: CachePage) -> None:
        """Takes a page out of wherever it stands.

        Raises:
            ValueError: the page is not in the queue.
        """
        before, after = page.prev_free_page, page.next_free_page
        if before is None or after is None:
            raise ValueError(f"page {page.page_id} is not in the free queue")
        before.next_free_page = after
        after.prev_free_page = before
        page.prev_free_page = page.next_free_page = None
        self.num_free_pages -= 1

    def get_all_free_pages(self) -> list[CachePage]:
        """All pages, front first; for tests and integrity checks."""
        pages = []
        page = self._head.next_free_page
        while page is not None and page is not self._tail:
            pages.append(page)
            page = page.next_free_page
        return pages

    def _link(self, before: CachePage, pages: Sequence[CachePage], after: CachePage) -> None:
        """Puts pages between two neighbours."""
        for page in pages:
            page.prev_free_page = before
            before.next_free_page = page
            before = page
        before.next_free_page = after
        after.prev_free_page = before
        self.num_free_pages += len(pages)
