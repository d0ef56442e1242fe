"""Admission gives waiting requests slots and pages; preemption takes them away when the pool is empty."""

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

    Call it only when a running request needs a page, because then one is not sheltered. Nothing may be in flight.
    """
    preempt(requests, max((r for r in requests.running if not is_sheltered(r)), key=attrgetter("order")))


def preempt(requests: LiveRequests, request: Request) -> None:
    """Takes slot and pages from a running request; it is computed again later from its tokens."""
    request.num_preemptions += 1
    requests.counters.num_preemptions += 1
    requests.send_back(request)


def admit(requests: LiveRequests, num_wanted: int, *, may_begin: bool) -> list[Request]:
    """Starts waiting requests in the order of the queue, `num_wanted` at most, while slots and pages last.

    `may_begin` says whether requests that have never run may start; others always may.
    """
    buffer, pages = requests.buffer, requests.pages
    admitted: list[Request] = []
    if not (requests.waiting and buffer.num_free_slots and num_wanted > 0):
        return admitted
    for request in requests.waiting.candidates(requests.running):
        if not (may_begin or request.was_admitted) or requests.prefixes.must_wait(request):
            continue
        cached = requests.prefixes.match(request)
        num_cached_tokens = len(cached[0]) * requests.page_size
        if request.pictures and requests.pictures_wait(request, num_cached_tokens):
            continue
        num_reserved = request.max_length if is_sheltered(request) else request.num_tokens
        # One page of each group stays in reserve for each running request, or the next step would preempt.
        num_in_reserve = pages.num_groups * len(requests.running)
        if pages.num_allocatable < pages.num_missing_at_start(cached, num_reserved) + num_in_reserve:
            break
        pages.start(request, cached, num_reserved)
        requests.start(request, num_cached_tokens)
        admitted.append(request)
        if not buffer.num_free_slots or len(admitted) >= num_wanted:
            break
    return admitted
