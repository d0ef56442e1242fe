"""Admission: which waiting requests get a slot and pages."""

from __future__ import annotations

from engine.schedule.live_requests import LiveRequests
from engine.schedule.preemption import is_sheltered
from engine.schedule.request import Request


def admit(requests: LiveRequests, num_wanted: int, *, may_begin: bool) -> list[Request]:
    """Starts waiting requests in the order of the queue, while slots and pages last.

    Args:
        num_wanted: how many at most.
        may_begin: whether requests that have never run may start; others always may.

    Returns:
        Those that were started.
    """
    buffer, pool = requests.buffer, requests.pool
    admitted: list[Request] = []
    if not (requests.waiting and buffer.num_free_slots and num_wanted > 0):
        return admitted
    for request in requests.waiting.candidates(requests.running):
        if not (may_begin or request.was_admitted) or requests.prefixes.must_wait(request):
            continue
        cached = requests.prefixes.match(request)
        num_reserved = request.max_length if is_sheltered(request) else request.num_tokens
        num_needed = -(-num_reserved // requests.page_size) - len(cached)
        num_reclaimed = sum(page.ref_cnt == 0 for page in cached)  # cached pages that leave the free queue
        # One page stays in reserve for each running request, or the next step would preempt.
        if pool.num_allocatable - num_reclaimed < num_needed + len(requests.running):
            break
        pool.touch(cached)
        request.pages = cached + pool.allocate(num_needed)
        requests.start(request, len(cached) * requests.page_size)
        admitted.append(request)
        if not buffer.num_free_slots or len(admitted) >= num_wanted:
            break
    return admitted
