"""Progress events of requests that wait for their first token."""

import time
from collections.abc import Iterator

from engine.interface.types import PromptProgress, WaitStage
from engine.schedule.request import Request, RequestStatus
from engine.schedule.request_event import RequestEvent
from engine.schedule.scheduler import Scheduler
from engine.schedule.step_time.step_costs import StepWork

INTERVAL_SECONDS = 0.2
_LEAST_REST = 50  # a look at the whole queue is followed by a rest of at least so many times its duration


class ProgressReports:
    """Watches requests from their submission to their first token, in the engine thread.

    All are looked at together, about five times a second and for a fiftieth of the thread's time at most. A request
    gets an event only when something has changed.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._watched: dict[Request, PromptProgress | None] = {}  # with what each was reported last
        self._due_at = 0.0  # seconds on the monotonic clock

    def watch(self, request: Request) -> None:
        """Reports on the request from now on, until it has a token or ends."""
        self._watched[request] = None

    def are_due(self, now: float) -> bool:
        """Whether it is time to call `report`; never while no request is watched."""
        return bool(self._watched) and now >= self._due_at

    def report(self, *, is_paused: bool) -> list[RequestEvent]:
        """The events of the watched requests whose progress has changed; while paused, they say so."""
        began = time.monotonic()
        self._watched = {request: reported for request, reported in self._watched.items() if _is_waiting(request)}
        events = []
        for request, progress in self._look(is_paused=is_paused):
            reported = self._watched[request]
            if reported is None or progress._replace(milliseconds=reported.milliseconds) != reported:
                self._watched[request] = progress
                events.append(RequestEvent(request, (), None, progress=progress))
        ended = time.monotonic()
        self._due_at = began + max(INTERVAL_SECONDS, _LEAST_REST * (ended - began))
        return events

    def _look(self, *, is_paused: bool) -> Iterator[tuple[Request, PromptProgress]]:
        if not self._watched:
            return
        live, estimate = self._scheduler.requests, WaitEstimate(self._scheduler)
        detail = "the engine is paused" if is_paused else None
        num_queued = 0  # watched requests that are in the queue
        for request in self._watched:
            if request.status is RequestStatus.WAITING:
                num_queued += 1
                continue
            num_left = request.num_tokens - request.num_computed_tokens
            seconds = None if is_paused else estimate.seconds(_num_before(live.running, num_left))
            yield request, _progress(request, WaitStage.PROMPT, 0, seconds, detail)
        num_tokens = estimate.num_prompt_tokens_left
        for position, request in enumerate(live.waiting.forecast(live.running) if num_queued else ()):
            num_tokens += request.num_tokens
            if request in self._watched:
                seconds = None if is_paused else estimate.seconds(num_tokens, position)
                yield request, _progress(request, WaitStage.QUEUED, position, seconds, detail)
                num_queued -= 1
                if not num_queued:
                    return


def _is_waiting(request: Request) -> bool:
    return request.status is not RequestStatus.FINISHED and not request.num_output_tokens


def _num_before(running: list[Request], num_left: int) -> int:
    """Tokens of prompts that are computed before one with `num_left` tokens left is finished: the shortest first."""
    lefts = (request.num_tokens - request.num_computed_tokens for request in running)
    return sum(left for left in lefts if 1 < left <= num_left)


def _progress(
    request: Request, stage: WaitStage, position: int, seconds: float | None, detail: str | None
) -> PromptProgress:
    admitted_at = request.admitted_at
    return PromptProgress(
        stage,
        position,
        None if seconds is None else round(seconds, 2),
        request.num_prompt_tokens,
        request.num_cached_tokens,
        min(max(request.num_committed_tokens, request.num_cached_tokens), request.num_prompt_tokens),
        0.0 if admitted_at is None else 1000 * (time.perf_counter() - admitted_at),
        detail,
    )


class WaitEstimate:
    """Estimates how long waiting requests wait for their first token; reads the running requests once.

    Two things delay it: prompts, each of whose steps takes a time known from earlier ones, and slots, which are freed
    as running requests end. Answers count as long as the mean of earlier ones. Cached prefixes and short pages are
    ignored.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        """Reads the scheduler; called in the engine thread."""
        scheduler.learn_step_times()
        live, step_time = scheduler.requests, scheduler.step_time
        self.num_prompt_tokens_left = 0  # of prompts that are being computed
        num_rows = context = 0
        for request in live.running:
            if request.status is not RequestStatus.RUNNING:
                continue
            num_left = request.num_tokens - request.num_computed_tokens
            if num_left > 1:
                self.num_prompt_tokens_left += num_left
            else:
                num_rows += 1
                context += request.num_tokens
        decoding = StepWork(num_rows, context)
        budget = step_time.budget(scheduler.max_num_batched_tokens, scheduler.chunk_alignment, decoding)
        num_taken = budget.take(scheduler.max_num_batched_tokens, 0)
        self._is_known = step_time.costs.has_seen_tiles and num_taken > 0
        self._step_ms = step_time.costs.predict(decoding)
        self._token_ms = step_time.costs.predict(budget.work) / max(num_taken, 1)
        self._num_free_slots = live.buffer.num_free_slots
        counters = scheduler.counters
        mean_output = counters.num_generation_tokens / max(counters.num_admitted, 1)
        # A slot comes free each time that one of the running requests ends.
        self._slot_ms = max(mean_output, 1.0) * self._step_ms / max(len(live.running), 1)

    def seconds(self, num_tokens: int, num_requests: int | None = None) -> float | None:
        """Seconds until a request's first token; None before a step with a prompt was measured.

        `num_tokens` of prompts are computed before that, and `num_requests` start before it; None: it has a slot.
        """
        if not self._is_known:
            return None
        num_ends = 0 if num_requests is None else max(num_requests + 1 - self._num_free_slots, 0)
        return (max(num_tokens * self._token_ms, num_ends * self._slot_ms) + self._step_ms) / 1000
