"""The page pool: which pages are in use, and which pages remember a prefix."""

from collections.abc import Callable, Sequence

from cache.free_queue import FreeCachePageQueue
from cache.hashing import PageHash
from cache.page import NULL_PAGE_ID, CachePage, Listener, PageRemoved, PagesCleared, PageStored

FREE = 0  # no request holds the page, and it has no name
CACHED = 1  # no request holds it, but it remembers a part of a prefix
ACTIVE = 2  # one request holds it
SHARED = 3  # several requests hold it


class OutOfPages(RuntimeError):
    """Fewer pages can be allocated than were requested; nothing was allocated."""


class PagePool:
    """All pages of one KV cache except the null page; always `num_free + num_cached + num_active == num_pages`."""

    def __init__(self, num_pages: int) -> None:
        """Makes a pool of free pages; `num_pages` includes the null page. Raises ValueError if it is below 2."""
        if num_pages < 2:
            raise ValueError(f"num_pages is {num_pages}; a pool needs the null page and at least one more")
        self.pages = [CachePage(page_id) for page_id in range(num_pages)]
        self.num_pages = num_pages - 1
        self._queue = FreeCachePageQueue(self.pages[1:])
        self._page_by_hash: dict[bytes, CachePage] = {}
        self._num_cached = 0
        self.listener: Listener | None = None  # receives the page events in order
        self.highest_page = NULL_PAGE_ID  # of those that were handed out since this was last set to NULL_PAGE_ID
        self.on_reach: Callable[[int], None] | None = None  # called with the number of pages up to it, when it rises
        self.snapshots: PagePool | None = None  # of states at the ends of pages; it is reset with this pool

    @property
    def num_free(self) -> int:
        """Pages that no request holds and that remember nothing."""
        return self._queue.num_free_pages - self._num_cached

    @property
    def num_cached(self) -> int:
        """Pages that no request holds but that still remember a prefix."""
        return self._num_cached

    @property
    def num_active(self) -> int:
        """Pages that at least one request holds."""
        return self.num_pages - self._queue.num_free_pages

    def states(self) -> bytes:
        """One byte for each page, in order of page ids: FREE, CACHED, ACTIVE or SHARED.

        Any thread may read it without a lock; single pages may then be a step apart.
        """
        return bytes(
            [
                (ACTIVE if page.ref_cnt == 1 else SHARED)
                if page.ref_cnt
                else (FREE if page.page_hash is None else CACHED)
                for page in self.pages[1:]
            ]
        )

    @property
    def num_allocatable(self) -> int:
        """Pages that `allocate` could return now: the free ones, and the cached ones by eviction."""
        return self._queue.num_free_pages

    def allocate(self, n: int) -> list[CachePage]:
        """Allocates n pages with one reference each, evicting cached pages; raises OutOfPages, and none is taken."""
        if n > self._queue.num_free_pages:
            raise OutOfPages(f"{n} pages are asked for, {self._queue.num_free_pages} are allocatable")
        pages = [self._queue.popleft()] if n == 1 else self._queue.popleft_n(n)
        for page in pages:
            if page.page_hash is not None:
                self._evict(page)
            page.incr_ref()
        if self.highest_page < self.num_pages:
            self._reach(max((page.page_id for page in pages), default=NULL_PAGE_ID))
        return pages

    def touch(self, pages: Sequence[CachePage]) -> None:
        """Adds a reference to each page; a cached page becomes active and leaves the free queue."""
        for page in pages:
            if page.ref_cnt == 0:
                self._queue.remove(page)
                self._num_cached -= 1
            page.incr_ref()

    def release(self, pages: Sequence[CachePage], *, evict_early: bool = False) -> None:
        """Removes one reference from each page of a request; `pages` are in the order of its tokens.

        Pages without references become cached or free; the last one enters the queue first and so is evicted first.
        With `evict_early` they are evicted before all other pages that are cached.
        """
        free: list[CachePage] = []
        cached: list[CachePage] = []
        for page in reversed(pages):
            page.decr_ref()
            if page.ref_cnt == 0:
                (free if page.page_hash is None else cached).append(page)
        self._queue.appendleft_n(free[::-1])
        (self._queue.append_early_n if evict_early else self._queue.append_n)(cached)
        self._num_cached += len(cached)

    def cache_page(self, page: CachePage, page_hash: PageHash, parent_hash: bytes | None = None) -> None:
        """Names the content of an active page full of committed tokens; another active page that has the name keeps it.

        A page that has the name and that nobody holds loses it: it would be evicted before this one, which has its use.
        The listener receives `parent_hash`, of the page before in the first group; None for the first of a sequence.
        Raises ValueError if no request holds the page.
        """
        if page.ref_cnt < 1:
            raise ValueError(f"page {page.page_id} is hashed while nobody holds it")
        before = self._page_by_hash.get(page_hash.hash_value)
        if before is not None and before.ref_cnt:
            return
        page.set_hash(page_hash)
        self._page_by_hash[page_hash.hash_value] = page
        if before is not None:
            before.reset_hash()
            self._queue.remove(before)
            self._queue.appendleft_n([before])
            self._num_cached -= 1
        elif self.listener is not None:
            self.listener(PageStored(page_hash, parent_hash))

    def has(self, hash_value: bytes) -> bool:
        """Whether a page has this name; `find` also compares the token ids."""
        return hash_value in self._page_by_hash

    def find(self, page_hash: PageHash) -> CachePage | None:
        """The page with this content, or None. Token ids and extra keys are compared, not only the hash."""
        page = self._page_by_hash.get(page_hash.hash_value)
        return page if page is not None and page.page_hash == page_hash else None

    def match_prefix(self, page_hashes: Sequence[PageHash]) -> list[CachePage]:
        """The pages of the longest remembered prefix; no reference is added."""
        pages = []
        for page_hash in page_hashes:
            page = self.find(page_hash)
            if page is None:
                break
            pages.append(page)
        return pages

    def forget(self, pages: Sequence[CachePage]) -> None:
        """Removes the names of active pages; raises ValueError if no request holds one of them."""
        for page in pages:
            if page.ref_cnt < 1:
                raise ValueError(f"page {page.page_id} is to be forgotten while nobody holds it")
            if page.page_hash is not None:
                self._unname(page, page.page_hash)

    def reset_prefix_cache(self) -> bool:
        """Forgets every prefix, so that pages are allocated in their order again; False while any page is active."""
        if self.num_active:
            return False
        pages = self.pages[1:]  # takes memory; where there is none, nothing has changed yet
        for page in pages:
            page.reset_hash()
        self._queue.reorder(pages)
        self._page_by_hash.clear()
        self._num_cached = 0
        if self.listener is not None:
            self.listener(PagesCleared())
        if self.snapshots is not None:
            self.snapshots.reset_prefix_cache()
        return True

    def check(self) -> None:
        """Checks the counts, the queue and all pages against each other; raises AssertionError."""
        queued = self._queue.get_all_free_pages()
        cached = sum(page.page_hash is not None for page in queued)
        active = [page for page in self.pages[1:] if page.ref_cnt > 0]
        assert len(queued) == self._queue.num_free_pages == len({page.page_id for page in queued}), "queue count"
        assert cached == self._num_cached, f"{cached} pages are cached, {self._num_cached} are counted"
        assert len(queued) + len(active) == self.num_pages, f"{len(queued)} queued + {len(active)} active pages"
        assert all(page.ref_cnt == 0 for page in queued), "a page in the free queue is referenced"
        assert self.pages[NULL_PAGE_ID].ref_cnt == 0, "the null page was handed out"
        hashed = {page.page_hash.hash_value: page for page in self.pages if page.page_hash is not None}
        assert hashed == self._page_by_hash, "the pages that can be found are not those that have a hash"

    def _reach(self, page_id: int) -> None:
        if page_id > self.highest_page:
            self.highest_page = page_id
            if self.on_reach is not None:
                self.on_reach(page_id + 1)  # the null page is one of them

    def _evict(self, page: CachePage) -> None:
        assert page.page_hash is not None
        self._unname(page, page.page_hash)
        self._num_cached -= 1

    def _unname(self, page: CachePage, page_hash: PageHash) -> None:
        del self._page_by_hash[page_hash.hash_value]
        page.reset_hash()
        if self.listener is not None:
            self.listener(PageRemoved(page_hash.hash_value, page_hash.group))
