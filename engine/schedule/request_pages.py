"""The pages that running requests hold, in each group of layers; pages behind the window of a group are given back."""

from collections.abc import Sequence
from itertools import compress

from cache.page import CachePage
from cache.page_groups import first_seen_page, most_pages
from cache.pool import OutOfPages, PagePool
from engine.schedule.request import Request
from engine.schedule.sequence_buffer import SequenceBuffer

_WINDOWS_BETWEEN_ENDS = 4  # between two ends of prefixes whose windows are evicted late, in a long sequence


class RequestPages:
    """Allocates the pages of requests and releases them.

    The tables of a request have one entry for each page of its tokens: the null page where a group with a window has
    given the page back, or never needed it.

    A request gets its pages of groups without a window when it starts, for all of its tokens. It gets those of groups
    with a window step by step, and then none may be missing. So as many as it may ever hold are promised to it before,
    and no other request may start or grow with what is promised:

        pages of groups without a window that are held + pages of groups with one that are promised <= all pages

    What a request gives back can be found until it is evicted, which is early for most of it. The pages before the ends
    of prefixes that are probably continued are evicted as late as all others: before `Request.reused_ends`, and before
    each fourth window of a long sequence.
    """

    def __init__(
        self, pool: PagePool, buffer: SequenceBuffer, page_size: int, windows: Sequence[int], max_step_tokens: int
    ) -> None:
        """
        Args:
            windows: of each group; 0: its layers see all.
            max_step_tokens: tokens of a request that one step computes at most.
        """
        self.windows = tuple(windows)
        self.num_groups = len(self.windows)
        self._pool = pool
        self._buffer = buffer
        self._page_size = page_size
        self._full = [group for group, window in enumerate(windows) if not window]
        self._windowed = [(group, window) for group, window in enumerate(windows) if window]
        self._most = [most_pages(window, page_size, max_step_tokens) for _, window in self._windowed]
        self._num_promised = 0  # pages of groups with a window, to all running requests
        self._num_held = 0  # of these pages, how many any request holds

    @property
    def gives_back(self) -> bool:
        """Whether any group has a window."""
        return bool(self._windowed)

    @property
    def num_allocatable(self) -> int:
        """Pages that are allocatable and not promised."""
        return self._pool.num_allocatable - (self._num_promised - self._num_held)

    def num_needed(self, num_tokens: int) -> int:
        """The most pages that a request of so many tokens holds at once."""
        num_pages = -(-num_tokens // self._page_size)
        return len(self._full) * num_pages + self._promise(num_pages)

    def num_missing(self, request: Request, num_tokens: int) -> int:
        """Pages that `grow` takes of those that are allocatable."""
        num_pages = -(-num_tokens // self._page_size)
        promise = max(0, self._promise(num_pages) - request.num_promised_pages)
        return promise + sum(max(0, num_pages - len(request.tables[group])) for group in self._full)

    def num_missing_at_start(self, cached: Sequence[Sequence[CachePage]], num_tokens: int) -> int:
        """Pages that `start` takes of those that are allocatable."""
        reused = [page for group in self._full for page in cached[group]]
        num_reclaimed = sum(page.ref_cnt == 0 for page in reused)  # cached pages that leave the free queue
        return self.num_needed(num_tokens) - len(reused) + num_reclaimed

    def start(self, request: Request, cached: list[list[CachePage]], num_tokens: int) -> None:
        """Gives a request the cached pages of its prefix, and pages for so many tokens, which must be allocatable."""
        num_pages, num_cached = -(-num_tokens // self._page_size), len(cached[0])
        for group, window in enumerate(self.windows):
            pages = _held(cached[group])
            self._num_held += sum(page.ref_cnt == 0 for page in pages) if window else 0
            self._pool.touch(pages)
            request.num_held_pages += len(pages)
        request.tables = cached
        for group in self._full:
            request.tables[group] += self._pool.allocate(num_pages - num_cached)
            request.num_held_pages += num_pages - num_cached
        self._num_promised += self._promise(num_pages)
        request.num_promised_pages = self._promise(num_pages)
        request.num_paged_tokens = (num_cached if self._windowed else num_pages) * self._page_size

    def grow(self, request: Request, num_tokens: int) -> None:
        """Allocates pages of a running request for its first `num_tokens` tokens; raises OutOfPages, and none is taken.

        What no token from the first one on that is not computed sees is given back.
        """
        num_pages = -(-num_tokens // self._page_size)
        if self._windowed and self.num_missing(request, num_tokens) > self.num_allocatable:
            raise OutOfPages(f"request {request.request_id!r} needs pages that are promised to others")
        for group in self._full:
            self._append(request, group, num_pages)
        promise = max(request.num_promised_pages, self._promise(num_pages))
        self._num_promised += promise - request.num_promised_pages
        request.num_promised_pages = promise
        # One page more than needed is held, so that the next turn may begin a few tokens before the end of this one.
        num_left = request.num_computed_tokens - self._page_size
        for group, window in self._windowed:
            self._give_back(request, group, first_seen_page(num_left, window, self._page_size))
            self._num_held += self._append(request, group, num_pages)
        request.num_paged_tokens = num_pages * self._page_size

    def release(self, request: Request) -> None:
        """Releases all pages of a request."""
        for group, _ in self._windowed:
            self._num_held -= sum(page.ref_cnt == 1 for page in _held(request.tables[group]))
        self._num_promised -= request.num_promised_pages
        # The last are evicted first. A prefix without all pages of its window is useless, so these go together.
        in_order = [*self._full, *(group for group, _ in self._windowed)]
        self._pool.release(_held([page for group in in_order for page in request.tables[group]]))
        request.tables = [[]]
        request.num_held_pages = request.num_promised_pages = request.num_paged_tokens = 0

    def check_idle(self) -> None:
        """Raises RuntimeError if pages are promised or held although no request runs."""
        if self._num_promised or self._num_held:
            raise RuntimeError(f"{self._num_promised} pages are promised and {self._num_held} held by no request")

    def _promise(self, num_pages: int) -> int:
        """The most pages of groups with a window that a sequence of so many pages holds at once."""
        return sum(min(num_pages, most) for most in self._most)

    def _append(self, request: Request, group: int, num_pages: int) -> int:
        """Extends the table of a group to so many pages; returns how many were allocated."""
        table = request.tables[group]
        num_missing = num_pages - len(table)
        if num_missing <= 0:
            return 0
        pages = self._pool.allocate(num_missing)
        self._buffer.write_pages(request.slot, len(table), pages, group)
        table += pages
        request.num_held_pages += num_missing
        return num_missing

    def _give_back(self, request: Request, group: int, end: int) -> None:
        """Releases the pages of a group before `end`."""
        table, null = request.tables[group], self._pool.pages[0]
        first = end
        while first > 0 and table[first - 1] is not null:
            first -= 1
        pages = table[first:end]
        if pages:
            self._num_held -= sum(page.ref_cnt == 1 for page in pages)
            window = self.windows[group]
            is_early = [not self._is_continued(request, window, index) for index in range(first, end)]
            self._pool.release(list(compress(pages, is_early)), evict_early=True)
            self._pool.release([page for page, early in zip(pages, is_early, strict=True) if not early])
            request.num_held_pages -= len(pages)
            table[first:end] = [null] * len(pages)
            self._buffer.write_pages(request.slot, first, table[first:end], group)

    def _is_continued(self, request: Request, window: int, index: int) -> bool:
        """Whether a page of a group with a window is seen behind the end of a prefix that is probably continued."""
        interval = _WINDOWS_BETWEEN_ENDS * -(-window // self._page_size)
        ends = (*request.reused_ends, (index // interval + 1) * interval)
        return any(self._first_seen(end, window) <= index < end for end in ends)

    def _first_seen(self, num_pages: int, window: int) -> int:
        """The first page of a prefix, or of one that is a page shorter, that is seen behind its end."""
        return first_seen_page((num_pages - 1) * self._page_size, window, self._page_size)


def _held(pages: Sequence[CachePage]) -> list[CachePage]:
    """Those pages that are not the null page."""
    return [page for page in pages if page.page_id]
