"""The pool behaves like a naive model that keeps everything in plain dictionaries."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cache.hashing import PageHash, hash_request_tokens, sha256_hash
from cache.pool import ACTIVE, CACHED, FREE, SHARED, OutOfPages, PagePool
from tests.fakes.page_index import PageIndex

PAGE_SIZE = 2


class PoolMachine(RuleBasedStateMachine):
    """Requests allocate, hash, share and release pages; a plain list predicts every eviction."""

    @initialize(num_pages=st.integers(2, 9))
    def start(self, num_pages):
        self.pool = PagePool(num_pages)
        self.index = PageIndex(self.pool)
        self.holders: list[list] = []  # the pages of each request that holds some, in token order
        self.references = dict.fromkeys(range(1, num_pages), 0)
        self.names: dict[int, PageHash] = {}  # page id -> name
        self.queue = list(range(1, num_pages))  # the naive eviction order, front first
        self.early: list[int] = []  # those in the queue that are evicted before other pages with names
        self.handed_out = {0}
        self.told: list[int] = []
        self.pool.on_reach = self.told.append

    @rule(n=st.integers(0, 5))
    def allocate(self, n):
        if n > len(self.queue):
            with pytest.raises(OutOfPages, match=f"{n} pages are asked for, {len(self.queue)} are allocatable"):
                self.pool.allocate(n)
            return
        pages = self.pool.allocate(n)
        assert [page.page_id for page in pages] == self.queue[:n]
        for page_id in self.queue[:n]:
            self.names.pop(page_id, None)
            self.references[page_id] = 1
            self.no_longer_early(page_id)
        if max(self.queue[:n], default=0) > max(self.handed_out):
            assert self.told.pop() == max(self.queue[:n]) + 1, "the null page counts"
        assert self.told == []
        self.handed_out.update(self.queue[:n])
        assert self.pool.highest_page == max(self.handed_out)
        del self.queue[:n]
        self.holders.append(pages)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), first=st.integers(0, 1))
    def hash_pages(self, data, first):
        pages = data.draw(st.sampled_from(self.holders))
        tokens = [first] * (len(pages) * PAGE_SIZE)
        parent = None
        for page, name in zip(pages, hash_request_tokens(sha256_hash, PAGE_SIZE, tokens), strict=True):
            if page.page_id not in self.names:
                self.pool.cache_page(page, name, parent)
                before = next((page_id for page_id, known in self.names.items() if known == name), None)
                if before in self.queue:
                    del self.names[before]
                    self.queue.remove(before)
                    self.queue.insert(0, before)
                    self.no_longer_early(before)
                if before is None or before not in self.names:
                    self.names[page.page_id] = name
            parent = name.hash_value

    @rule(first=st.integers(0, 1), length=st.integers(0, 5))
    def share(self, first, length):
        wanted = hash_request_tokens(sha256_hash, PAGE_SIZE, [first] * (length * PAGE_SIZE))
        by_name = {name: page_id for page_id, name in self.names.items()}
        expected = []
        for name in wanted:
            if name not in by_name:
                break
            expected.append(by_name[name])
        pages = self.pool.match_prefix(wanted)
        assert [page.page_id for page in pages] == expected
        self.pool.touch(pages)
        for page_id in expected:
            self.references[page_id] += 1
            if page_id in self.queue:
                self.queue.remove(page_id)
                self.no_longer_early(page_id)
        self.holders.append(pages)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), evict_early=st.booleans())
    def release(self, data, evict_early):
        index = data.draw(st.integers(0, len(self.holders) - 1))
        pages = self.holders.pop(index)
        self.pool.release(pages, evict_early=evict_early)
        for page in reversed(pages):
            self.references[page.page_id] -= 1
            if not self.references[page.page_id]:
                is_last = page.page_id in self.names and not evict_early
                self.queue.insert(len(self.queue) if is_last else self.num_early(page), page.page_id)
                if page.page_id in self.names and evict_early:
                    self.early.append(page.page_id)

    def no_longer_early(self, page_id) -> None:
        self.early = [each for each in self.early if each != page_id]

    def num_early(self, page) -> int:
        """Queued pages before the place of a page that is evicted early or free."""
        if page.page_id not in self.names:
            return 0
        return sum(page_id not in self.names or page_id in self.early for page_id in self.queue)

    @rule()
    def reset(self):
        is_idle = not any(self.references.values())
        assert self.pool.reset_prefix_cache() is is_idle
        if is_idle:
            self.names.clear()
            self.early.clear()
            self.queue.sort()

    @invariant()
    def the_books_balance(self):
        pool = self.pool
        pool.check()
        self.index.check()
        assert pool.num_free + pool.num_cached + pool.num_active == pool.num_pages
        assert pool.num_active == sum(count > 0 for count in self.references.values())
        assert pool.num_cached == sum(page_id in self.names for page_id in self.queue)


TestPool = PoolMachine.TestCase


def test_a_collision_is_harmless():
    pool = PagePool(3)
    (page,) = pool.allocate(1)
    pool.cache_page(page, PageHash(bytes(32), (1, 2)))
    assert pool.find(PageHash(bytes(32), (1, 2))) is page
    assert pool.find(PageHash(bytes(32), (1, 3))) is None
    assert pool.find(PageHash(bytes(32), (1, 2), ("salt",))) is None


def test_pages_without_a_name_are_handed_out_before_remembered_ones():
    pool = PagePool(5)
    remembered, scratch = pool.allocate(2), pool.allocate(2)
    for page, name in zip(remembered, hash_request_tokens(sha256_hash, PAGE_SIZE, [1, 2, 3, 4]), strict=True):
        pool.cache_page(page, name)
    pool.release(remembered)
    pool.release(scratch)
    assert pool.allocate(2) == scratch
    # The tail of the remembered chain is evicted before its head.
    assert pool.allocate(2) == remembered[::-1]


def test_a_page_that_is_computed_again_takes_the_name_from_one_that_nobody_holds():
    """The old one would be evicted first, and the new one would be of no use."""
    pool = PagePool(4)
    name = PageHash(bytes(32), (1, 2))
    (old,) = pool.allocate(1)
    pool.cache_page(old, name)
    pool.release([old])
    new, _ = pool.allocate(2)
    pool.cache_page(new, name)
    assert pool.find(name) is new
    assert (pool.num_free, pool.num_cached) == (1, 0)
    assert pool.allocate(1) == [old]
    pool.check()


def test_what_is_evicted_early_comes_between_free_pages_and_other_cached_ones():
    pool = PagePool(5)
    usual, early, *free = pool.allocate(4)
    for page, name in zip((usual, early), hash_request_tokens(sha256_hash, 1, [1, 2]), strict=True):
        pool.cache_page(page, name)
    pool.release([usual])
    pool.release([early], evict_early=True)
    pool.release(free)
    assert pool.allocate(4) == [*free, early, usual]


def test_a_page_cannot_be_released_twice():
    pool = PagePool(3)
    pages = pool.allocate(1)
    pool.release(pages)
    with pytest.raises(ValueError, match="released more often"):
        pool.release(pages)
    pool.check()


def test_the_null_page_is_never_handed_out():
    pool = PagePool(4)
    assert [page.page_id for page in pool.allocate(3)] == [1, 2, 3]
    with pytest.raises(ValueError, match="at least one more"):
        PagePool(1)


def test_forgotten_pages_become_free_when_they_are_released():
    pool = PagePool(4)
    pages = pool.allocate(3)
    names = hash_request_tokens(sha256_hash, 1, [1, 2])
    for page, name in zip(pages, names, strict=False):
        pool.cache_page(page, name)
    pool.forget(pages)
    assert pool.match_prefix(names) == []
    pool.release(pages)
    assert (pool.num_free, pool.num_cached) == (3, 0)
    pool.check()
    with pytest.raises(ValueError, match=f"page {pages[0].page_id} is to be forgotten while nobody holds it"):
        pool.forget(pages)


def test_a_reset_for_which_there_is_no_memory_changes_nothing():
    class Full(list):
        def __getitem__(self, index):
            if isinstance(index, slice):
                raise MemoryError
            return super().__getitem__(index)

    pool = PagePool(4)
    pages = pool.allocate(2)
    names = hash_request_tokens(sha256_hash, 1, [1, 2])
    for page, name in zip(pages, names, strict=True):
        pool.cache_page(page, name)
    pool.release(pages)
    usual, pool.pages = pool.pages, Full(pool.pages)
    with pytest.raises(MemoryError):
        pool.reset_prefix_cache()
    pool.pages = usual
    pool.check()
    assert pool.match_prefix(names) == pages
    assert pool.reset_prefix_cache()
    assert [page.page_id for page in pool.allocate(3)] == [1, 2, 3]


def test_each_page_tells_its_state():
    pool = PagePool(6)
    held, shared, cached, _ = pages = pool.allocate(4)
    for page, name in zip(pages, hash_request_tokens(sha256_hash, 1, [1, 2, 3]), strict=False):
        pool.cache_page(page, name)
    pool.touch([shared])
    pool.release(pages[2:])
    states = dict(enumerate(pool.states(), start=1))
    assert states.pop(held.page_id) == ACTIVE
    assert states.pop(shared.page_id) == SHARED
    assert states.pop(cached.page_id) == CACHED
    assert set(states.values()) == {FREE}


def test_the_check_notices_a_page_that_is_found_under_another_name():
    pool = PagePool(3)
    (page,) = pool.allocate(1)
    first, second = hash_request_tokens(sha256_hash, 1, [1, 2])
    pool.cache_page(page, first)
    page.page_hash = second
    with pytest.raises(AssertionError, match="can be found"):
        pool.check()
