"""Preemption: which running request gives its pages up when the pool is empty, and how often that may happen."""

from __future__ import annotations

from operator import attrgetter

from engine.schedule.live_requests import LiveRequests
from engine.schedule.request import Request

# A request that was preempted this often is sheltered: it is admitted only with all the pages it may ever
# need, and it is not preempted again. Without this bound, two long requests could preempt each other for ever.
MAX_PREEMPTIONS = 3


def is_sheltered(request: Request) -> bool:
    """Whether the request must not be preempted again."""
    return request.num_preemptions >= MAX_PREEMPTIONS


def preempt_one(requests: LiveRequests) -> None:
    """Preempts the running request of the lowest priority, and among equals the one that arrived last.

    Call it only when a running request needs a page: a sheltered request has all its pages, so at least
    one running request is not sheltered. Nothing may be in flight.
    """
    preempt(requests, max((r for r in requests.running if not is_sheltered(r)), key=attrgetter("order")))


def preempt(requests: LiveRequests, request: Request) -> None:
    """Takes slot and pages from a running request; it is computed again later from its tokens."""
    request.num_preemptions += 1
    requests.counters.num_preemptions += 1
    requests.send_back(request)
