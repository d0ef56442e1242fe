"""The deadlines of requests, soonest first."""

import heapq
from collections.abc import Iterator
from itertools import count

from engine.schedule.request import Request, RequestStatus

_MIN_PURGE_SIZE = 64  # a heap smaller than this is never purged


class Deadlines:
    """A heap of deadlines; those of finished requests are dropped on expiry, or once they outnumber the live ones."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._tie_breakers = count()  # orders equal deadlines, because requests cannot be compared
        self._purge_size = _MIN_PURGE_SIZE  # a larger heap is purged of finished requests

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: Request) -> None:
        """Adds the deadlines that the request has: none, one or both of `deadline` and `queue_deadline`."""
        if len(self._heap) > self._purge_size:
            self._heap = [entry for entry in self._heap if entry[2].status is not RequestStatus.FINISHED]
            heapq.heapify(self._heap)
            self._purge_size = 2 * len(self._heap) + _MIN_PURGE_SIZE
        for deadline in (request.deadline, request.queue_deadline):
            if deadline is not None:
                heapq.heappush(self._heap, (deadline, next(self._tie_breakers), request))

    def pop_expired(self, now: float) -> Iterator[Request]:
        """Yields requests whose deadline, by the monotonic clock, has come; each must be ended before the next."""
        while self._heap and self._heap[0][0] <= now:
            _, _, request = heapq.heappop(self._heap)
            if request.status is RequestStatus.FINISHED:
                continue
            has_expired = request.deadline is not None and request.deadline <= now
            if has_expired or not request.was_admitted:
                yield request
