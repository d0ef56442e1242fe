"""The deadlines of requests, soonest first."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count

from engine.schedule.request import Request, RequestStatus

_FEW = 64  # deadlines that are not worth being sifted


class Deadlines:
    """Those of requests that have ended stay in place until they are met or outnumber the others."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._ties = count()  # orders equal deadlines
        self._most = _FEW  # when there are more, those of ended requests are thrown out

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: Request) -> None:
        """Takes in the deadlines that the request has."""
        if len(self._heap) > self._most:
            self._heap = [entry for entry in self._heap if entry[2].status is not RequestStatus.FINISHED]
            heapq.heapify(self._heap)
            self._most = 2 * len(self._heap) + _FEW
        for deadline in (request.deadline, request.queue_deadline):
            if deadline is not None:
                heapq.heappush(self._heap, (deadline, next(self._ties), request))

    def pop_over(self, now: float) -> Iterator[Request]:
        """Requests whose time is over at `now`, on the clock of the deadlines; each is to be ended before the next."""
        while self._heap and self._heap[0][0] <= now:
            _, _, request = heapq.heappop(self._heap)
            if request.status is RequestStatus.FINISHED:
                continue
            is_over = request.deadline is not None and request.deadline <= now
            if is_over or not request.was_admitted:
                yield request
