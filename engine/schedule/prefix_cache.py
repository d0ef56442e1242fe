"""What requests know of each other's prefixes: pages that remember them, and pages about to."""

from __future__ import annotations

from cache.hashing import PageHash, extend_page_hashes, sha256_hash
from cache.page import CachePage
from cache.pool import PagePool
from engine.schedule.request import Request


class PrefixCache:
    """Names requests' pages, finds them in the pool, and has later requests wait for earlier ones' pages."""

    def __init__(self, pool: PagePool, page_size: int, *, is_enabled: bool) -> None:
        self._pool = pool
        self._page_size = page_size
        self._is_enabled = is_enabled
        self._computing: dict[bytes, Request] = {}  # page hash -> the running request that will commit it

    def match(self, request: Request) -> list[CachePage]:
        """The remembered pages of the request's longest known prefix; they are not touched yet."""
        return self._pool.match_prefix(self._reusable(request))

    def must_wait(self, request: Request) -> bool:
        """Whether a running request is about to commit a page that this one would compute otherwise."""
        if not self._computing:
            return False
        if request.awaited_hash is not None and request.awaited_hash in self._computing:
            return True
        request.awaited_hash = None
        for page_hash in reversed(self._reusable(request)):
            if page_hash.hash_value in self._computing:
                request.awaited_hash = page_hash.hash_value
                return True
        return False

    def enter(self, request: Request, num_cached_pages: int) -> None:
        """The request starts to run, with its first pages from the cache; it will commit the others it can name."""
        request.num_hashed_pages = num_cached_pages
        if self._is_enabled:
            for page_hash in request.page_hashes[num_cached_pages:]:
                self._computing.setdefault(page_hash.hash_value, request)

    def leave(self, request: Request) -> None:
        """The request stops running: nobody shall wait for its pages any more."""
        for page_hash in request.page_hashes[request.num_hashed_pages :]:
            self._forget_computing(page_hash, request)

    def commit(self, request: Request) -> None:
        """Tells the pool the names of the pages that commits have filled since the last call."""
        num_full = request.num_committed_tokens // self._page_size
        if not self._is_enabled or num_full <= request.num_hashed_pages:
            return
        self._name_pages(request)
        for index in range(request.num_hashed_pages, num_full):
            page, page_hash = request.pages[index], request.page_hashes[index]
            if self._computing:
                self._forget_computing(page_hash, request)
            self._pool.cache_page(page, page_hash)
        request.num_hashed_pages = num_full

    def forget(self, request: Request) -> None:
        """Makes sure that nobody finds the request's pages any more, because their content is wrong."""
        self._pool.forget(request.pages)
        request.num_committed_tokens = 0

    def _reusable(self, request: Request) -> list[PageHash]:
        """Names of the pages that may come from the cache: a full hit still leaves one token to compute."""
        if not self._is_enabled or request.prompt_logprobs is not None:
            return []  # logprobs of a prompt come from computing all of it
        self._name_pages(request)
        return request.page_hashes[: (len(request.token_ids) - 1) // self._page_size]

    def _name_pages(self, request: Request) -> None:
        """Hashes the pages that have become full of committed tokens since the last call."""
        extend_page_hashes(sha256_hash, self._page_size, request.token_ids, request.extra_keys, request.page_hashes)

    def _forget_computing(self, page_hash: PageHash, request: Request) -> None:
        if self._computing.get(page_hash.hash_value) is request:
            del self._computing[page_hash.hash_value]
