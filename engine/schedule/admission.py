"""Admission: which waiting requests start in the next step."""

from __future__ import annotations

from engine.schedule.live_requests import LiveRequests
from engine.schedule.preemption import is_sheltered
from engine.schedule.step_plan import StepPlan
from engine.schedule.token_budget import TokenBudget


def admit(requests: LiveRequests, budget: TokenBudget, singles: StepPlan, chunks: StepPlan, *, may_begin: bool) -> None:
    """Starts waiting requests in the order of the queue, while slots, pages and budget last.

    Args:
        singles: receives the rows of a single token.
        chunks: receives the rows of several tokens.
        may_begin: whether requests that have never run may start; others always may.
    """
    buffer, pool = requests.buffer, requests.pool
    if not (requests.waiting and buffer.num_free_slots and budget.num_left > 0):
        return
    for request in requests.waiting.candidates(requests.running):
        if not (may_begin or request.was_admitted) or requests.prefixes.must_wait(request):
            continue
        cached = requests.prefixes.match(request)
        start = len(cached) * requests.page_size
        num_tokens = budget.fit(request.num_tokens - start)
        if num_tokens == 0:
            return
        num_wanted = request.max_length if is_sheltered(request) else request.num_tokens
        num_needed = -(-num_wanted // requests.page_size) - len(cached)
        num_reclaimed = sum(page.ref_cnt == 0 for page in cached)  # cached pages that leave the free queue
        # One page stays in reserve for each running request, or the next step would preempt.
        if pool.num_allocatable - num_reclaimed < num_needed + len(requests.running):
            return
        pool.touch(cached)
        request.pages = cached + pool.allocate(num_needed)
        requests.start(request, start)
        budget.spend(num_tokens)
        plan = singles if num_tokens == 1 else chunks
        plan.add(request, start, num_tokens, start + num_tokens == request.num_tokens)
        if not buffer.num_free_slots or budget.num_left <= 0:
            return
