"""Export and import of pages: the engine thread's part of KV offload, which never waits.

The engine thread enqueues a copy of a named page behind the step that fills it, and another thread stores it. A waiting
request whose prefix is stored outside waits for these pages: other threads load them, and the engine thread enqueues
their writing before the steps that read them, as if a request had computed them and ended.
"""

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
from engine.kv_transfer.prefetch_job import NO_PREFETCH, PrefetchJob
from engine.kv_transfer.transfer_threads import Arrival, TransferThreads

# Bytes of pages that are copied between two steps at most, in each direction, at about 5 GB/s. At least one page is.
_BYTES_PER_TURN = 16 << 20
_BYTES_IN_FLIGHT = 64 << 20  # of copies that wait to be stored, and of pages that were requested
_MAX_JOBS = 8  # with pages in the pool before their requests start; more would evict each other's
_MAX_TOUCHES = 256  # notes of use that wait for the storing thread; more are dropped
_ARRIVAL_TIMEOUT = 2.0  # seconds without an arrival; then all waiting prompts are computed
_JOB_TIMEOUT = 10.0  # seconds for one job; then the rest of it is computed, because the place is slow or much used
_BACKOFF = 60.0  # seconds after that without requests
_REFUSED_BACKOFF = 5.0  # seconds in which nothing is copied after the connector could not store

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
        make_threads: Callable[..., TransferThreads] = TransferThreads,
    ) -> None:
        self.num_read = 0  # pages that came into the pool
        self.num_read_of_first = 0  # those of the first group of layers
        self.on_arrival: Callable[[], None] = lambda: None  # called by other threads for `import_pages`
        self._pool = pool
        self._device = device
        self._clock = clock
        self._make_threads = make_threads
        self._per_turn = max(1, _BYTES_PER_TURN // device.page_bytes)
        self._max_in_flight = max(2, _BYTES_IN_FLIGHT // device.page_bytes)
        self._make: Callable[[], KVConnector] | None = None
        self._threads: TransferThreads | None = None
        self._num_stored_before = 0  # by threads that have ended
        self._leaving: dict[bytes, CachePage] = {}  # by name, in order; the pages to be exported
        self._used: list[bytes] = []  # names of stored pages that were used since the last turn
        self._arriving: set[bytes] = set()  # names of all pages of active jobs
        self._jobs: list[PrefetchJob] = []  # that may request pages; their requests have not started
        self._queued: deque[PrefetchJob] = deque()
        self._num_pending = 0  # pages that were requested and have not arrived
        self._arrived_at = 0.0  # when the last of them did, or when the first was requested
        self._prefetch_again_at = -math.inf

    # ---------------------------------------------------------------- threads and connectors

    def start(self) -> None:
        """Starts the threads, if they do not run."""
        if self._threads is None:
            self._threads = self._make_threads(self._device, self._wake, self._clock)
            if self._make is not None:
                self._threads.open(self._make)

    def close(self, join_seconds: float) -> None:
        """Stores exported pages for at most so many seconds, because a disk may hang, and ends the threads."""
        if self._threads is not None:
            self.cancel_all()
            self._threads.close(join_seconds)
            self._num_stored_before += self._threads.num_stored
            self._threads = None
            self._num_pending = 0  # requested pages arrive no more

    def open(self, make: Callable[[], KVConnector]) -> None:
        """Changes the connector to the one that `make` makes in another thread, slowly, or with an OSError."""
        self.cancel_all()
        self._make = make
        if self._threads is not None:
            self._threads.open(make)

    def wait_until_open(self, seconds: float) -> None:
        """Waits at most so long until the connector is open, or cannot be opened."""
        if self._threads is not None:
            self._threads.wait_for_tasks(seconds)

    @property
    def connector(self) -> KVConnector | None:
        """None while there is none, or it is not open yet. May be read by any thread."""
        threads = self._threads
        return None if threads is None else threads.connector

    @property
    def num_stored(self) -> int:
        """Pages that were stored. May be read by any thread."""
        threads = self._threads
        return self._num_stored_before + (0 if threads is None else threads.num_stored)

    def cancel_all(self) -> None:
        """Cancels all jobs and exports, because the pages' content changes or is about to be lost."""
        for job in (*self._jobs, *self._queued):
            job.end()
        self._jobs.clear()
        self._queued.clear()
        self._arriving.clear()
        self._leaving.clear()

    def clear(self) -> None:
        """Removes all stored pages of this model; until that is done, none is held."""
        make = self._make
        self.cancel_all()
        if make is not None and self._threads is not None:
            self._threads.open(lambda: _cleared(make()))

    # ---------------------------------------------------------------- export

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

    def forget(self, names: Sequence[bytes]) -> None:
        """Removes stored pages whose content is wrong."""
        for name in names:
            self._leaving.pop(name, None)
        connector = self.connector
        if connector is not None and self._threads is not None:
            self._threads.submit(partial(connector.forget, names))

    def export_pages(self) -> bool:
        """Enqueues copies of pages that have names, behind the step that was dispatched last; returns whether any."""
        threads, connector = self._threads, self.connector
        if threads is None or connector is None:
            return False
        if self._used:
            used, self._used = self._used, []
            if threads.num_tasks < _MAX_TOUCHES:
                threads.submit(partial(connector.touch, used))
        if not self._leaving or self._clock() - threads.refused_at < _REFUSED_BACKOFF:
            return False
        num_left = min(self._per_turn, self._max_in_flight - threads.num_tasks)
        has_copied = False
        while self._leaving and num_left > 0:
            name = next(iter(self._leaving))
            page = self._leaving.pop(name)
            # The page may have been evicted since, and hold something else.
            if page.page_hash is not None and page.page_hash.hash_value == name and not connector.holds(name):
                threads.store(connector, name, self._device.read_page(page.page_id))
                num_left -= 1
                has_copied = True
        return has_copied

    # ---------------------------------------------------------------- import

    def is_arriving(self, name: bytes) -> bool:
        """Whether a job will import this page."""
        return name in self._arriving

    @property
    def has_arriving(self) -> bool:
        """Whether any job will import a page."""
        return bool(self._arriving)

    def prefetch(self, names: Sequence[PageHash], parent_hashes: Sequence[bytes | None]) -> PrefetchJob:
        """Begins to load the first of the pages `names` in their order, as many as are stored outside without a gap.

        The pages before them have the `parent_hashes`. Returns a job that is active while there is something to wait
        for.
        """
        connector = self.connector
        if connector is None or not names or self._clock() < self._prefetch_again_at:
            return NO_PREFETCH
        num_held = next((i for i, name in enumerate(names) if not connector.holds(name.hash_value)), len(names))
        if num_held == 0:
            return NO_PREFETCH
        job = PrefetchJob(names[:num_held], parent_hashes, connector, self._clock())
        self._queued.append(job)
        self._arriving.update(name.hash_value for name in job.names)
        self._request_loads()
        return job

    def import_pages(self) -> bool:
        """Puts pages that have arrived into the pool, before the next step; returns whether any."""
        threads = self._threads
        if threads is None:
            return False
        while not threads.arrived.empty():
            self._receive(threads.arrived.get())
        if not (self._jobs or self._queued):
            return False
        num_left = self._per_turn
        for job in self._jobs:
            num_left -= self._import_job(job, num_left)
        if self._num_pending and self._clock() - self._arrived_at > _ARRIVAL_TIMEOUT:
            self._time_out()
        self._request_loads()
        return num_left < self._per_turn

    def _wake(self) -> None:
        self.on_arrival()

    def _receive(self, arrival: Arrival) -> None:
        self._num_pending -= 1
        self._arrived_at = self._clock()
        if arrival.job.is_active:
            arrival.job.ready[arrival.index] = arrival.page

    def _import_job(self, job: PrefetchJob, most: int) -> int:
        """Enqueues the writing of at most so many pages of a job, in their order; returns how many."""
        num_written = 0
        while job.is_active and num_written < most and job.num_imported in job.ready:
            page_hash = job.names[job.num_imported]
            content = job.ready.pop(job.num_imported)
            is_known = self._pool.find(page_hash) is not None  # another request has computed it meanwhile
            if not is_known and (content is None or not self._pool.num_allocatable):
                self._end(job)
                break
            if not is_known:
                (page,) = self._pool.allocate(1)
                self._device.write_page(page.page_id, content)
                self._pool.cache_page(page, page_hash, job.parent_hashes[job.num_imported])
                self._pool.release([page])
                num_written += 1
                self.num_read_of_first += page_hash.group == 0
            self._arriving.discard(page_hash.hash_value)
            job.num_imported += 1
            if job.num_imported == len(job.names):
                self._end(job)
        self.num_read += num_written
        return num_written

    def _request_loads(self) -> None:
        """Requests pages of the jobs, the oldest first, as many as may be in flight."""
        assert self._threads is not None  # there is a job, so there is a connector
        self._drop_ended()
        while self._queued and len(self._jobs) < _MAX_JOBS:
            self._jobs.append(self._queued.popleft())
        num_left = self._max_in_flight - self._num_pending - sum(len(job.ready) for job in self._jobs)
        for job in self._jobs:
            while job.is_active and job.num_requested < len(job.names) and num_left > 0:
                if not self._num_pending:
                    self._arrived_at = self._clock()
                self._threads.request_load(job, job.num_requested)
                job.num_requested += 1
                self._num_pending += 1
                num_left -= 1

    def _drop_ended(self) -> None:
        """Drops jobs whose requests have started or ended, and ends those that take too long."""
        oldest = self._clock() - _JOB_TIMEOUT
        for job in (*self._jobs, *self._queued):
            if not job.is_awaited or (job.is_active and job.began_at < oldest):
                self._end(job)
        self._jobs = [job for job in self._jobs if job.is_awaited]
        self._queued = deque(job for job in self._queued if job.is_active)

    def _end(self, job: PrefetchJob) -> None:
        job.end()
        # Two jobs never bring the same page: a request waits for pages that are on their way to another.
        self._arriving.difference_update(name.hash_value for name in job.names[job.num_imported :])

    def _time_out(self) -> None:
        _log.warning(
            "kept pages were asked for and none came for %g s; prompts are computed for the next %g s",
            _ARRIVAL_TIMEOUT, _BACKOFF,
        )  # fmt: skip
        self._prefetch_again_at = self._clock() + _BACKOFF
        for job in (*self._jobs, *self._queued):
            self._end(job)


def _cleared(connector: KVConnector) -> KVConnector:
    connector.clear()
    return connector
