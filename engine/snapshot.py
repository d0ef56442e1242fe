"""Snapshots of the engine's state, taken from any thread and without a lock."""

import heapq
from operator import attrgetter
from typing import Final

import numpy as np

from cache.pool import SHARED, PagePool
from engine.interface.snapshot import EngineSnapshot, RequestView, StepView
from engine.interface.types import EngineStats
from engine.schedule.request import Request, RequestStatus
from engine.schedule.scheduler import Scheduler
from engine.timeline import StepTimes, Timeline

MAX_STEPS: Final = 128
MAX_WAITING: Final = 64
MAX_PAGE_STATES: Final = 4096


def take_snapshot(scheduler: Scheduler, timeline: Timeline, stats: EngineStats) -> EngineSnapshot:
    """A snapshot; each list of the scheduler is copied at once, which the interpreter lock makes atomic."""
    requests = scheduler.requests
    running, unfinished = list(requests.running), list(requests.unfinished.values())
    waiting = (request for request in unfinished if request.status is RequestStatus.WAITING)
    states, pages_per_state, num_shared = _page_states(scheduler.pool)
    return EngineSnapshot(
        now=timeline.now(),
        stats=stats,
        num_slots=scheduler.buffer.num_slots,
        running=[_view(request) for request in running],
        waiting=[_view(request) for request in heapq.nsmallest(MAX_WAITING, waiting, key=attrgetter("order"))],
        page_states=states,
        pages_per_state=pages_per_state,
        num_shared_pages=num_shared,
        steps=[_step(times) for times in timeline.last_steps(MAX_STEPS)],
    )


def _page_states(pool: PagePool) -> tuple[bytes, int, int]:
    """The states of all pages; where there are many, the highest state of several pages together."""
    states = pool.states()
    num_shared = states.count(SHARED)
    together = -(-len(states) // MAX_PAGE_STATES)
    if together == 1:
        return states, 1, num_shared
    padded = np.zeros(-(-len(states) // together) * together, np.uint8)
    padded[: len(states)] = np.frombuffer(states, np.uint8)
    return padded.reshape(-1, together).max(axis=1).tobytes(), together, num_shared


def _view(request: Request) -> RequestView:
    return RequestView(
        request_id=request.request_id,
        slot=request.slot,
        num_prompt_tokens=request.num_prompt_tokens,
        num_computed_tokens=min(request.num_computed_tokens, request.num_prompt_tokens),
        num_cached_tokens=request.num_cached_tokens,
        num_output_tokens=request.num_output_tokens,
        num_pages=request.num_held_pages,
        num_preemptions=request.num_preemptions,
        is_finished=request.status is RequestStatus.FINISHED,
        submitted_at=request.submitted_at,
        admitted_at=request.admitted_at,
    )


def _step(times: StepTimes) -> StepView:
    return StepView(
        times.step, times.num_rows, times.num_tokens, times.schedule_began, times.dispatch_began, times.dispatched,
        times.wait_began, times.commit_began, times.commit_ended, times.device_began, times.device_ended,
        times.idle_total,
    )  # fmt: skip
