"""The queue of the pages that may be allocated, in order of eviction."""

from collections.abc import Iterable, Sequence

from cache.page import CachePage


class FreeCachePageQueue:
    """A doubly linked list whose links are in the pages: removal from the middle is O(1) and allocates nothing.

    Pages at the front are evicted first: those without a hash, then those that were given back behind a window and that
    few prefixes need (`append_early_n`), then the least recently used, and of pages released together the tail of a
    chain before its head, because a tail is useless without its head. The pool adds them in that order. Each method
    allocates all memory before it changes anything, so that a MemoryError leaves the queue as it was.
    """

    __slots__ = ("_head", "_middle", "_tail", "num_free_pages")

    def __init__(self, pages: Iterable[CachePage]) -> None:
        # With a sentinel at each end, every queued page has two neighbours. The one in the middle is behind the pages
        # of `append_early_n`.
        self._head = CachePage(-1)
        self._middle = CachePage(-1)
        self._tail = CachePage(-1)
        self._head.next_free_page = self._tail.prev_free_page = self._middle
        self._middle.prev_free_page, self._middle.next_free_page = self._head, self._tail
        self.num_free_pages = 0
        self.append_early_n(list(pages))

    def append(self, page: CachePage) -> None:
        """Adds a page at the back, to be evicted last; raises ValueError if it is in the queue already."""
        before = self._tail.prev_free_page
        assert before is not None
        if page.prev_free_page is not None:
            raise ValueError(f"page {page.page_id} is in the free queue already")
        num_free_pages = self.num_free_pages + 1
        page.prev_free_page = before
        page.next_free_page = self._tail
        before.next_free_page = self._tail.prev_free_page = page
        self.num_free_pages = num_free_pages

    def append_n(self, pages: Sequence[CachePage]) -> None:
        """Adds pages at the back, in their order; none of them may be in the queue."""
        before = self._tail.prev_free_page
        assert before is not None
        self._link(before, pages, self._tail, self.num_free_pages)

    def appendleft_n(self, pages: Sequence[CachePage]) -> None:
        """Adds pages at the front, in their order; none of them may be in the queue."""
        after = self._head.next_free_page
        assert after is not None
        self._link(self._head, pages, after, self.num_free_pages)

    def append_early_n(self, pages: Sequence[CachePage]) -> None:
        """Adds pages before all that `append` and `append_n` added; none of them may be in the queue."""
        before = self._middle.prev_free_page
        assert before is not None
        self._link(before, pages, self._middle, self.num_free_pages)

    def popleft(self) -> CachePage:
        """Removes and returns the first page; raises IndexError if the queue is empty."""
        page = self._head.next_free_page
        if page is self._middle:
            page = page.next_free_page
        assert page is not None
        if page is self._tail:
            raise IndexError("no free page is left")
        self.remove(page)
        return page

    def popleft_n(self, n: int) -> list[CachePage]:
        """Removes and returns the first n pages; raises IndexError, and removes none, if there are fewer."""
        if n > self.num_free_pages:
            raise IndexError(f"{n} free pages are asked for, {self.num_free_pages} are left")
        pages = []
        before, page = self._head, self._head.next_free_page
        for _ in range(n):  # so `page` is never None or the last sentinel here
            if page is self._middle:
                before, page = page, page.next_free_page
            assert page is not None
            pages.append(page)
            page = page.next_free_page
        assert page is not None
        num_free_pages = self.num_free_pages - n
        for taken in pages:
            taken.prev_free_page = taken.next_free_page = None
        if before is self._middle:
            self._head.next_free_page = before
            before.prev_free_page = self._head
        before.next_free_page = page
        page.prev_free_page = before
        self.num_free_pages = num_free_pages
        return pages

    def remove(self, page: CachePage) -> None:
        """Removes a page from any place; raises ValueError if it is not in the queue."""
        before, after = page.prev_free_page, page.next_free_page
        if before is None or after is None:
            raise ValueError(f"page {page.page_id} is not in the free queue")
        num_free_pages = self.num_free_pages - 1
        before.next_free_page = after
        after.prev_free_page = before
        page.prev_free_page = page.next_free_page = None
        self.num_free_pages = num_free_pages

    def reorder(self, pages: Sequence[CachePage]) -> None:
        """Brings the pages into another order; `pages` must be those of the queue."""
        self._link(self._head, pages, self._middle, 0)
        self._middle.next_free_page = self._tail
        self._tail.prev_free_page = self._middle

    def get_all_free_pages(self) -> list[CachePage]:
        """All pages in order, the first to be evicted at the front."""
        pages = []
        page = self._head.next_free_page
        while page is not None and page is not self._tail:
            if page is not self._middle:
                pages.append(page)
            page = page.next_free_page
        return pages

    def _link(self, before: CachePage, pages: Sequence[CachePage], after: CachePage, num_others: int) -> None:
        """Adds pages between two neighbours, so that they and `num_others` are in the queue."""
        num_free_pages = num_others + len(pages)
        for page in pages:
            page.prev_free_page = before
            before.next_free_page = page
            before = page
        before.next_free_page = after
        after.prev_free_page = before
        self.num_free_pages = num_free_pages
