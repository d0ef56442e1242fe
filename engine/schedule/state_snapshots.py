"""Snapshots of the states of recurrent layers: where steps save them, and which of them requests begin with.

A cached prefix of a model with recurrent layers is worth what its last snapshot covers, because a state cannot be taken
from pages. A snapshot has the name of the page at whose end it was saved.
"""

from collections.abc import Iterator, Sequence

from cache.hashing import PageHash
from cache.page import CachePage
from cache.pool import PagePool
from cache.states import StateLayout
from engine.schedule.request import Request
from engine.schedule.step_plan import StateLoad, StateSave, StepPlan

# Snapshots of an answer that is not committed to its end, besides those at whole intervals. The last one may be behind
# a stop that the host does not know yet; the one before it is committed.
_NUM_LATEST = 2


class StateSnapshots:
    """Decides which steps save snapshots, and finds those of a prefix. Its pool evicts the least recently used."""

    def __init__(self, pool: PagePool, layout: StateLayout, page_size: int, interval: int, tile_size: int) -> None:
        """
        Args:
            pool: its pages are snapshots.
            interval: pages between two snapshots of a long prompt; at least a tile.
            tile_size: tokens of a row of a prompt, which saves one snapshot at most.
        """
        self._pool = pool
        self._layout = layout
        self._page_size = page_size
        self._interval = interval
        self._tile_size = tile_size

    def longest(self, page_hashes: Sequence[PageHash], num_pages: int) -> int:
        """Pages of the longest prefix, of at most `num_pages`, at whose end there is a snapshot; 0 without one."""
        return next((count for count in range(num_pages, 0, -1) if self._pool.find(page_hashes[count - 1])), 0)

    def enter(self, request: Request, num_cached_pages: int) -> None:
        """Keeps the snapshot that a starting request begins with until its first step is planned."""
        if num_cached_pages:
            snapshot = self._pool.find(request.page_hashes[num_cached_pages - 1])
            assert snapshot is not None
            self._pool.touch([snapshot])
            request.snapshot = snapshot

    def plan(self, plan: StepPlan) -> None:
        """Adds to a plan which rows load a snapshot and which save one."""
        loaded = []
        for row, request in enumerate(plan.requests):
            start, end = plan.starts[row], plan.starts[row] + plan.num_tokens[row]
            if request.snapshot is not None:
                plan.loads.append(StateLoad(row, self._layout.entry_of(request.snapshot.page_id)))
                loaded.append(request.snapshot)
                request.snapshot = None
            for num_pages in self._ends(request, start, end):
                snapshot = self._allocate(request)
                if snapshot is not None:
                    plan.saves.append(
                        StateSave(row, num_pages * self._page_size, self._layout.entry_of(snapshot.page_id))
                    )
                    request.saved.append((num_pages, snapshot))
        # Now no row of this step can be given them to save to, and a later step writes after this one has read.
        self._pool.release(loaded)

    def name(self, request: Request) -> None:
        """Gives the snapshots at the ends of pages whose names the pool knows these names, so that they are found.

        The steps that write them must be planned: those of earlier plans, or of a plan to which nothing is added.
        """
        unnamed = []
        for num_pages, snapshot in request.saved:
            if num_pages > request.num_hashed_pages:
                unnamed.append((num_pages, snapshot))
                continue
            self._pool.cache_page(snapshot, request.page_hashes[num_pages - 1])
            self._pool.release([snapshot])
        request.saved = unnamed

    def leave(self, request: Request) -> None:
        """Releases what a request holds; its snapshots without a name are lost."""
        if request.snapshot is not None:
            self._pool.release([request.snapshot])
            request.snapshot = None
        self._pool.release([snapshot for _, snapshot in request.saved])
        request.saved = []

    def forget(self, request: Request) -> None:
        """Removes the names of the snapshots of a request's prefixes, because their content may be wrong."""
        found = [snapshot for each in request.page_hashes if (snapshot := self._pool.find(each)) is not None]
        self._pool.touch(found)
        self._pool.forget(found)
        self._pool.release(found)

    def _ends(self, request: Request, start: int, end: int) -> Iterator[int]:
        """The numbers of pages at whose ends a row from token `start` to `end` saves, at most one for each tile.

        A row of a prompt saves at whole intervals and where the same prompt could begin the next time, one token before
        its end at least. A row of one token saves at the end of each page.
        """
        page_size = self._page_size
        if end - start == 1:
            if end % page_size == 0:
                yield end // page_size
            return
        last = (len(request.token_ids) - 1) // page_size
        for first in range(start, end, self._tile_size):
            stop = min(first + self._tile_size, end)
            if first < last * page_size <= stop:
                yield last
                continue
            whole = stop // page_size // self._interval * self._interval
            if first < whole * page_size:
                yield whole

    def _allocate(self, request: Request) -> CachePage | None:
        """A snapshot to write to; None where all are held."""
        # Of an answer, the latest two are kept, and those at whole intervals until they have names.
        latest = [index for index, (num_pages, _) in enumerate(request.saved) if num_pages % self._interval]
        if len(latest) >= _NUM_LATEST:
            _, snapshot = request.saved.pop(latest[0])
            self._pool.release([snapshot])
        return self._pool.allocate(1)[0] if self._pool.num_allocatable else None
