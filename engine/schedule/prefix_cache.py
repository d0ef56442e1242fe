"""The prefix cache: requests reuse the pages of a common prefix instead of computing it again."""

from collections.abc import Callable, Iterator, Sequence

from cache.hashing import PageHash, hash_of_group, hash_request_tokens, sha256_hash
from cache.page import NULL_PAGE_ID, CachePage
from cache.page_groups import first_seen_page, longest_prefix, longest_run
from cache.pool import PagePool
from engine.kv_transfer.transfers import PageTransfers
from engine.schedule.request import Request
from engine.schedule.state_snapshots import StateSnapshots
from engine.schedule.step_plan import StepPlan


class PrefixCache:
    """Names the pages of requests and finds named pages in the pool, perhaps while another request computes them."""

    def __init__(
        self, pool: PagePool, page_size: int, *, is_enabled: bool, snapshots: StateSnapshots | None = None,
        windows: Sequence[int] = (0,),
    ) -> None:  # fmt: skip
        self._pool = pool
        self._snapshots = snapshots if is_enabled else None  # None: no layer is recurrent, or nothing is remembered
        self._expected: list[tuple[Request, int]] = []  # with snapshots: pages that the plan under way fills
        self._page_size = page_size
        self._windows = tuple(windows)  # of each group of layers with pages of its own; 0: they see all
        self._is_enabled = is_enabled
        self._computing: dict[bytes, Request] = {}  # page hash -> the running request that will commit it
        self.transfers: PageTransfers | None = None  # None: no KV offload

    def match(self, request: Request) -> list[list[CachePage]]:
        """The cached pages of the longest remembered prefix of the request, in each group; no reference is added.

        With recurrent layers it ends where there is a snapshot. Groups with a window have the null page where the rest
        of the request does not see the page.
        """
        names = self._reusable(request)
        if not any(self._windows):
            pages = self._pool.match_prefix(names)
            return [pages if self._snapshots is None else pages[: self._snapshots.longest(names, len(pages))]]
        num_shared, num_pages = self._longest(names, self._pool.has)
        request.reused_ends = (num_pages, num_shared, max(0, request.num_prompt_tokens - 1) // self._page_size)
        tables = [[self._pool.pages[NULL_PAGE_ID]] * num_pages for _ in self._windows]
        for group, index in self._seen_behind(num_pages):
            page = self._pool.find(names[index].of_group(group))
            if page is None:  # another page has the same hash
                return [[] for _ in self._windows]
            tables[group][index] = page
        return tables

    def must_wait(self, request: Request) -> bool:
        """Whether a page that this request could reuse is being computed by a running request, or loaded."""
        if self._awaits(request):
            return True
        if self.transfers is None:
            return False
        if request.prefetch is None:
            request.prefetch = self.transfers.prefetch(*self._missing(self._reusable(request)))
        return request.prefetch.is_active

    def stop_prefetch(self, request: Request) -> None:
        """Notes that the request starts or ends, so that it waits for no page any more."""
        if request.prefetch is not None:
            request.prefetch.detach()

    def enter(self, request: Request, num_cached_pages: int) -> None:
        """Notes that the request starts to run, and that it will commit all its named pages behind the cached ones."""
        request.num_hashed_pages = num_cached_pages
        if self._snapshots is not None:
            self._snapshots.enter(request, num_cached_pages)
        if self._is_enabled:
            for page_hash in request.page_hashes[num_cached_pages:]:
                self._computing.setdefault(page_hash.hash_value, request)
            if self.transfers is not None:
                for group, index in self._seen_behind(num_cached_pages):
                    self.transfers.note(request.tables[group][index], request.page_hashes[index].of_group(group))

    def leave(self, request: Request) -> None:
        """Notes that the request stops running, so that no other request waits for its pages any more."""
        for page_hash in request.page_hashes[request.num_hashed_pages :]:
            self._forget_computing(page_hash, request)

    def expect(self, request: Request, num_tokens: int) -> None:
        """Tells the pool the names of the pages that the step being planned, which must be dispatched, fills.

        The device computes steps in the order of their plans, and in a step it writes before it reads. So the pages may
        be shared from now on, by other rows of this step too. A snapshot may be read by later steps only, and with
        recurrent layers pages are of no use without one, so `planned` tells the pool of them.
        """
        num_full = min(num_tokens // self._page_size, len(request.page_hashes))
        if self._snapshots is None:
            self._cache_pages(request, num_full)
        else:
            self._expected.append((request, num_full))

    def planned(self, plan: StepPlan) -> None:
        """Completes a plan that must be dispatched: it gets the snapshots that its rows load and save."""
        if self._snapshots is None:
            return
        self._snapshots.plan(plan)
        expected, self._expected = self._expected, []
        for request, num_full in expected:
            self._cache_pages(request, num_full)

    def commit(self, request: Request) -> None:
        """Tells the pool the names of the pages that were filled with committed tokens since the last call."""
        num_full = request.num_committed_tokens // self._page_size
        if self._is_enabled and num_full > request.num_hashed_pages:
            self._name_pages(request)
            self._cache_pages(request, num_full)

    def _cache_pages(self, request: Request, num_full: int) -> None:
        if num_full <= request.num_hashed_pages:
            return
        first = request.num_hashed_pages
        parent_hash = request.page_hashes[first - 1].hash_value if first else None
        for index in range(first, num_full):
            page_hash = request.page_hashes[index]
            if self._computing:
                self._forget_computing(page_hash, request)
            for group, table in enumerate(request.tables):
                page, name = table[index], page_hash.of_group(group)
                if page.page_id == NULL_PAGE_ID:
                    continue  # it was given back before it had a name
                self._pool.cache_page(page, name, parent_hash)
                if self.transfers is not None:
                    self.transfers.note(page, name)
            parent_hash = page_hash.hash_value
        request.num_hashed_pages = num_full
        if self._snapshots is not None:
            self._snapshots.name(request)

    def release(self, request: Request) -> None:
        """Releases what a request that stops running holds besides its pages."""
        if self._snapshots is not None:
            self._snapshots.leave(request)

    def forget(self, request: Request) -> None:
        """Removes the names of the request's pages from the pool, because their content is wrong."""
        if self._snapshots is not None:
            self._snapshots.forget(request)
        pages, names = [], []
        for group, table in enumerate(request.tables):
            for index, page in enumerate(table):
                if page.page_id == NULL_PAGE_ID and index < request.num_hashed_pages:  # it was given back
                    name = request.page_hashes[index].of_group(group)
                    names.append(name.hash_value)
                    found = self._pool.find(name)
                    pages += [] if found is None else [found]
                elif page.page_hash is not None:
                    names.append(page.page_hash.hash_value)
                    pages.append(page)
        if self.transfers is not None:
            self.transfers.forget(names)
        self._pool.touch(pages)
        self._pool.forget(pages)
        self._pool.release(pages)
        request.num_committed_tokens = 0

    def _seen_behind(self, num_pages: int) -> Iterator[tuple[int, int]]:
        """Groups and indices of the pages among the first `num_pages` that a later token sees."""
        for group in range(len(self._windows)):
            first = first_seen_page(num_pages * self._page_size, self._windows[group], self._page_size)
            yield from ((group, index) for index in range(first, num_pages))

    def _longest(self, names: Sequence[PageHash], has: Callable[[bytes], bool]) -> tuple[int, int]:
        """Pages of the longest prefix in groups without a window, and of the longest one that can be continued.

        `has` says whether the page with a hash can be had.
        """

        def is_there(index: int, group: int) -> bool:
            return has(hash_of_group(names[index].hash_value, group))

        num_pages = longest_run(len(names), self._windows, is_there)
        return num_pages, longest_prefix(num_pages, self._windows, self._page_size, is_there)

    def _missing(self, names: Sequence[PageHash]) -> tuple[Sequence[PageHash], Sequence[bytes | None]]:
        """Pages to load from outside in this order, and the parent of each."""
        parents = [None, *(name.hash_value for name in names)]
        if not any(self._windows):
            first = len(self._pool.match_prefix(names))
            return names[first:], parents[first:]
        connector = None if self.transfers is None else self.transfers.connector
        if connector is None:
            return (), ()
        places = self._places_to_load(names, lambda name: self._pool.has(name) or connector.holds(name))
        return [names[index].of_group(group) for group, index in places], [parents[index] for _, index in places]

    def _places_to_load(self, names: Sequence[PageHash], has: Callable[[bytes], bool]) -> list[tuple[int, int]]:
        """Groups and indices of the pages of the longest prefix that are not in the pool.

        Their order is such that of a load that ends early at most a quarter is of no use: after each quarter of the
        prefix come the pages that a token behind it sees, if all can be had.
        """
        num_cached = self._longest(names, self._pool.has)[1]
        num_pages = self._longest(names, has)[1]
        if num_pages == num_cached:
            return []
        places: dict[tuple[int, int], None] = {}
        for quarter in range(1, 5):
            end = num_pages * quarter // 4
            seen = list(self._seen_behind(end))
            behind = (hash_of_group(names[i].hash_value, group) for group, i in seen if self._windows[group])
            if end > num_cached and all(map(has, behind)):
                places |= dict.fromkeys(seen)
        return [
            (group, index)
            for group, index in places
            if not self._pool.has(hash_of_group(names[index].hash_value, group))
        ]

    def _awaits(self, request: Request) -> bool:
        """Whether a page that this request could reuse is about to be in the pool."""
        if not self._computing and (self.transfers is None or not self.transfers.has_arriving):
            return False
        if request.awaited_hash is not None and self._is_coming(request.awaited_hash):
            return True
        request.awaited_hash = None
        for page_hash in reversed(self._reusable(request)):
            if self._is_coming(page_hash.hash_value):
                request.awaited_hash = page_hash.hash_value
                return True
        return False

    def _is_coming(self, name: bytes) -> bool:
        return name in self._computing or (self.transfers is not None and self.transfers.is_arriving(name))

    def _reusable(self, request: Request) -> list[PageHash]:
        """Names of the pages that may come from the cache. At least one token is always left to compute, or two."""
        if not self._is_enabled or request.needs_whole_prompt:
            return []
        self._name_pages(request)
        num_tokens = len(request.token_ids) - request.num_always_computed
        return request.page_hashes[: max(0, num_tokens) // self._page_size]

    def _name_pages(self, request: Request) -> None:
        """Names the pages that were filled with committed tokens since the last call."""
        request.page_hashes += hash_request_tokens(
            sha256_hash, self._page_size, request.token_ids, request.extra_keys, known=request.page_hashes,
            spans=request.picture_spans if request.pictures else (),
        )  # fmt: skip

    def _forget_computing(self, page_hash: PageHash, request: Request) -> None:
        if self._computing.get(page_hash.hash_value) is request:
            del self._computing[page_hash.hash_value]
