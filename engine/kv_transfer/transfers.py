"""Which pages leave the engine and which come into it; the engine thread's part, which never waits.

A page leaves once it has a name: the engine thread enqueues a copy of it behind the step that fills it, and another
thread waits for the copy and stores it. A waiting request whose prefix lies outside waits for these pages in place of
computing them: other threads load them, and the engine thread enqueues their writing before the steps that read them.
So a page that has come is in the pool at once, named and held by nobody, as if a request had computed it and ended.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from cache.hashing import PageHash
from cache.page import CachePage
from cache.pool import PagePool
from engine.kv_transfer.kv_connector import KVConnector, PageDevice
from engine.kv_transfer.prefetch_job import NOTHING, PrefetchJob
from engine.kv_transfer.transfer_threads import Arrival, TransferThreads

# Bytes of pages that are copied between two steps at most, in each direction, at about 5 GB/s. At least one page is.
_BYTES_PER_TURN = 16 << 20
_BYTES_UNDER_WAY = 64 << 20  # of copies that wait to be stored, and of pages that were asked for
_MAX_FETCHES = 8  # whose pages may be in the pool before their requests start; else they would drive each other out
_MAX_TOUCHES = 256  # notes of use that wait for the storing thread; more are dropped
_PATIENCE = 2.0  # seconds without any page that was asked for; then all that wait are computed
_LONGEST = 10.0  # seconds for one fetch; then the rest of it is computed, because the place is slow or much used
_REST = 60.0  # seconds after that in which nothing is asked for
_REFUSED_REST = 5.0  # seconds in which nothing is copied after the connector could not store

_log = logging.getLogger(__name__)


class PageTransfers:
    """Exports pages that have names, and imports those that waiting requests can use.

    All methods are called by the engine thread, but for the counters, `start` and `close`, while it does not run.
    """

    def __init__(
        self,
        pool: PagePool,
        device: PageDevice,
        *,
        clock: Callable[[], float] = time.monotonic,
        make_porters: Callable[..., TransferThreads] = TransferThreads,
    ) -> None:
        """
        Args:
            clock: seconds.
            make_porters: TransferThreads, or a function with the same arguments.
        """
        self.num_read = 0  # pages that came into the pool
        self.on_arrival: Callable[[], None] = lambda: None  # called by other threads when `land` has something to do
        self._pool = pool
        self._device = device
        self._clock = clock
        self._make_porters = make_porters
        self._per_turn = max(1, _BYTES_PER_TURN // device.page_bytes)
        self._most_under_way = max(2, _BYTES_UNDER_WAY // device.page_bytes)
        self._make: Callable[[], KVConnector] | None = None
        self._porters: TransferThreads | None = None
        self._num_stored_before = 0  # by threads that have ended
        self._leaving: dict[bytes, CachePage] = {}  # by name, in order; the pages to be exported
        self._used: list[bytes] = []  # names of pages that are kept outside, used since the last turn
        self._arriving: set[bytes] = set()  # names of all pages of fetches that are under way
        self._fetches: list[PrefetchJob] = []  # those that may be asked for; their requests have not started
        self._queued: deque[PrefetchJob] = deque()
        self._num_asked = 0  # pages that were asked for and have not arrived
        self._arrived_at = 0.0  # the last of them, or when the first of them was asked for
        self._fetch_again_at = -math.inf

    # ---------------------------------------------------------------- threads and connectors

    def start(self) -> None:
        """Starts the threads, if they do not run."""
        if self._porters is None:
            self._porters = self._make_porters(self._device, self._wake, self._clock)
            if self._make is not None:
                self._porters.open(self._make)

    def close(self, join_seconds: float) -> None:
        """Stores what has left the engine and ends the threads; `start` may start others.

        Args:
            join_seconds: how long to wait for that at most. A disk that hangs must not keep the process.
        """
        if self._porters is not None:
            self.give_up()
            self._porters.close(join_seconds)
            self._num_stored_before += self._porters.num_stored
            self._porters = None
            self._num_asked = 0  # what was asked for arrives nowhere any more

    def open(self, make: Callable[[], KVConnector]) -> None:
        """Changes where pages go to and come from.

        Args:
            make: makes the connector; called by another thread, may take long and may raise an OSError.
        """
        self.give_up()
        self._make = make
        if self._porters is not None:
            self._porters.open(make)

    @property
    def connector(self) -> KVConnector | None:
        """None while there is none, or it is not open yet. May be read by any thread."""
        porters = self._porters
        return None if porters is None else porters.connector

    @property
    def num_stored(self) -> int:
        """Pages that were stored. May be read by any thread."""
        porters = self._porters
        return self._num_stored_before + (0 if porters is None else porters.num_stored)

    def give_up(self) -> None:
        """Forgets all that is under way, because the pages' content changes or is about to be lost."""
        for fetch in (*self._fetches, *self._queued):
            fetch.end()
        self._fetches.clear()
        self._queued.clear()
        self._arriving.clear()
        self._leaving.clear()

    def clear(self) -> None:
        """Has all pages removed that are kept for this model; until that is done, none is held."""
        make = self._make
        self.give_up()
        if make is not None and self._porters is not None:
            self._porters.open(lambda: _cleared(make()))

    # ---------------------------------------------------------------- pages leave

    def note(self, page: CachePage, page_hash: PageHash) -> None:
        """Notes that a page has got its name, or that a request uses it."""
        if page.page_hash is None:
            return  # another page has this name, and was noted
        name, connector = page_hash.hash_value, self.connector
        if connector is not None and connector.holds(name):
            self._used.append(name)
            return
        self._leaving[name] = page
        if len(self._leaving) > self._pool.num_pages:  # nothing can be stored: the oldest names are of no use any more
            del self._leaving[next(iter(self._leaving))]

    def forget(self, pages: Sequence[CachePage]) -> None:
        """Has pages removed whose content is wrong; they still have their names."""
        names = [page.page_hash.hash_value for page in pages if page.page_hash is not None]
        for name in names:
            self._leaving.pop(name, None)
        connector = self.connector
        if connector is not None and self._porters is not None:
            self._porters.do(partial(connector.forget, names))

    def export(self) -> bool:
        """Enqueues copies of pages that have names, behind the step that was dispatched last; returns whether any."""
        porters, connector = self._porters, self.connector
        if porters is None or connector is None:
            return False
        if self._used:
            used, self._used = self._used, []
            if porters.num_errands < _MAX_TOUCHES:
                porters.do(partial(connector.touch, used))
        if not self._leaving or self._clock() - porters.refused_at < _REFUSED_REST:
            return False
        num_left = min(self._per_turn, self._most_under_way - porters.num_errands)
        has_copied = False
        while self._leaving and num_left > 0:
            name = next(iter(self._leaving))
            page = self._leaving.pop(name)
            # The page may have been evicted since, and hold something else.
            if page.page_hash is not None and page.page_hash.hash_value == name and not connector.holds(name):
                porters.store(connector, name, self._device.read_page(page.page_id))
                num_left -= 1
                has_copied = True
        return has_copied

    # ---------------------------------------------------------------- pages come

    def is_arriving(self, name: bytes) -> bool:
        """Whether a fetch will bring this page."""
        return name in self._arriving

    @property
    def has_arriving(self) -> bool:
        """Whether any page is on its way."""
        return bool(self._arriving)

    def fetch(self, names: Sequence[PageHash], parent_hash: bytes | None) -> PrefetchJob:
        """Begins to bring the first of these pages, as many as are kept outside without a gap.

        Args:
            names: of the consecutive pages of a prefix that the pool lacks.
            parent_hash: of the page before them; None if there is none.

        Returns:
            A fetch that is under way while there is something to wait for.
        """
        connector = self.connector
        if connector is None or not names or self._clock() < self._fetch_again_at:
            return NOTHING
        num_held = next((i for i, name in enumerate(names) if not connector.holds(name.hash_value)), len(names))
        if num_held == 0:
            return NOTHING
        fetch = PrefetchJob(names[:num_held], parent_hash, connector, self._clock())
        self._queued.append(fetch)
        self._arriving.update(name.hash_value for name in fetch.names)
        self._ask()
        return fetch

    def land(self) -> bool:
        """Puts pages that have arrived into the pool, before the next step; returns whether any."""
        porters = self._porters
        if porters is None:
            return False
        while not porters.arrived.empty():
            self._receive(porters.arrived.get())
        if not (self._fetches or self._queued):
            return False
        num_left = self._per_turn
        for fetch in self._fetches:
            num_left -= self._land(fetch, num_left)
        if self._num_asked and self._clock() - self._arrived_at > _PATIENCE:
            self._lose_patience()
        self._ask()
        return num_left < self._per_turn

    def _wake(self) -> None:
        self.on_arrival()

    def _receive(self, arrival: Arrival) -> None:
        self._num_asked -= 1
        self._arrived_at = self._clock()
        if arrival.fetch.is_under_way:
            arrival.fetch.ready[arrival.index] = arrival.page

    def _land(self, fetch: PrefetchJob, most: int) -> int:
        """Enqueues the writing of at most so many pages of a fetch, in their order; returns how many."""
        num_written = 0
        while fetch.is_under_way and num_written < most and fetch.num_landed in fetch.ready:
            page_hash = fetch.names[fetch.num_landed]
            parent_hash = fetch.names[fetch.num_landed - 1].hash_value if fetch.num_landed else fetch.parent_hash
            content = fetch.ready.pop(fetch.num_landed)
            is_known = self._pool.find(page_hash) is not None  # another request has computed it meanwhile
            if not is_known and (content is None or not self._pool.num_allocatable):
                self._end(fetch)
                break
            if not is_known:
                (page,) = self._pool.allocate(1)
                self._device.write_page(page.page_id, content)
                self._pool.cache_page(page, page_hash, parent_hash)
                self._pool.release([page])
                num_written += 1
            self._arriving.discard(page_hash.hash_value)
            fetch.num_landed += 1
            if fetch.num_landed == len(fetch.names):
                self._end(fetch)
        self.num_read += num_written
        return num_written

    def _ask(self) -> None:
        """Asks for pages of the fetches, the oldest first, as many as may be under way."""
        assert self._porters is not None  # there is a fetch, so there is a connector
        self._drop_left()
        while self._queued and len(self._fetches) < _MAX_FETCHES:
            self._fetches.append(self._queued.popleft())
        num_left = self._most_under_way - self._num_asked - sum(len(fetch.ready) for fetch in self._fetches)
        for fetch in self._fetches:
            while fetch.is_under_way and fetch.num_asked < len(fetch.names) and num_left > 0:
                if not self._num_asked:
                    self._arrived_at = self._clock()
                self._porters.ask(fetch, fetch.num_asked)
                fetch.num_asked += 1
                self._num_asked += 1
                num_left -= 1

    def _drop_left(self) -> None:
        """Lets go of fetches whose requests have started or ended, and ends those that take too long."""
        oldest = self._clock() - _LONGEST
        for fetch in (*self._fetches, *self._queued):
            if not fetch.is_awaited or (fetch.is_under_way and fetch.began_at < oldest):
                self._end(fetch)
        self._fetches = [fetch for fetch in self._fetches if fetch.is_awaited]
        self._queued = deque(fetch for fetch in self._queued if fetch.is_under_way)

    def _end(self, fetch: PrefetchJob) -> None:
        fetch.end()
        # Two fetches never bring the same page: a request waits for pages that are on their way to another.
        self._arriving.difference_update(name.hash_value for name in fetch.names[fetch.num_landed :])

    def _lose_patience(self) -> None:
        _log.warning(
            "kept pages were asked for and none came for %g s; prompts are computed for the next %g s",
            _PATIENCE, _REST,
        )  # fmt: skip
        self._fetch_again_at = self._clock() + _REST
        for fetch in (*self._fetches, *self._queued):
            self._end(fetch)


def _cleared(connector: KVConnector) -> KVConnector:
    connector.clear()
    return connector
