"""Tells requests that ask for it how they wait for their first token."""

from __future__ import annotations

import time
from collections.abc import Iterator

from engine.interface.types import PromptProgress, WaitStage
from engine.schedule.request import Request, RequestStatus
from engine.schedule.request_event import RequestEvent
from engine.schedule.scheduler import Scheduler
from engine.wait_estimate import WaitEstimate

INTERVAL_SECONDS = 0.2
_LEAST_REST = 50  # a look at the whole queue is followed by a rest of at least so many times its duration


class ProgressReports:
    """Watches requests from their submission to their first token. All its methods run in the engine thread.

    All watched requests are looked at together, about five times a second, and seldom enough that it takes no more than
    a fiftieth of the thread's time. A request is told only what has changed.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._watched: dict[Request, PromptProgress | None] = {}  # with what each was told last
        self._due_at = 0.0  # seconds on the monotonic clock

    def watch(self, request: Request) -> None:
        """Reports on the request from now on, until it has a token or ends."""
        self._watched[request] = None

    def are_due(self, now: float) -> bool:
        """Whether it is time to call `report`; never while nobody is watched."""
        return bool(self._watched) and now >= self._due_at

    def report(self, *, is_paused: bool) -> list[RequestEvent]:
        """The events of those of whom there is something new to tell.

        Args:
            is_paused: whether no step is planned, for a time that nobody knows.
        """
        began = time.monotonic()
        self._watched = {request: told for request, told in self._watched.items() if _is_waiting(request)}
        events = []
        for request, progress in self._look(is_paused=is_paused):
            told = self._watched[request]
            if told is None or progress._replace(milliseconds=told.milliseconds) != told:
                self._watched[request] = progress
                events.append(RequestEvent(request, (), None, progress=progress))
        ended = time.monotonic()
        self._due_at = began + max(INTERVAL_SECONDS, _LEAST_REST * (ended - began))
        return events

    def _look(self, *, is_paused: bool) -> Iterator[tuple[Request, PromptProgress]]:
        if not self._watched:
            return
        live, estimate = self._scheduler.requests, WaitEstimate(self._scheduler)
        num_queued = 0  # watched requests that are in the queue
        for request in self._watched:
            if request.status is RequestStatus.WAITING:
                num_queued += 1
                continue
            num_left = request.num_tokens - request.num_computed_tokens
            seconds = None if is_paused else estimate.seconds(_num_before(live.running, num_left))
            yield request, _progress(request, WaitStage.PROMPT, 0, seconds)
        num_tokens = estimate.num_prompt_tokens_left
        for position, request in enumerate(live.waiting.forecast(live.running) if num_queued else ()):
            num_tokens += request.num_tokens
            if request in self._watched:
                seconds = None if is_paused else estimate.seconds(num_tokens, position)
                yield request, _progress(request, WaitStage.QUEUED, position, seconds)
                num_queued -= 1
                if not num_queued:
                    return


def _is_waiting(request: Request) -> bool:
    return request.status is not RequestStatus.FINISHED and not request.num_output_tokens


def _num_before(running: list[Request], num_left: int) -> int:
    """Tokens of prompts that are computed before a prompt with `num_left` tokens left has come to its end.

    The shortest of them is computed first.
    """
    lefts = (request.num_tokens - request.num_computed_tokens for request in running)
    return sum(left for left in lefts if 1 < left <= num_left)


def _progress(request: Request, stage: WaitStage, position: int, seconds: float | None) -> PromptProgress:
    admitted_at = request.admitted_at
    return PromptProgress(
        stage,
        position,
        None if seconds is None else round(seconds, 2),
        request.num_prompt_tokens,
        request.num_cached_tokens,
        min(max(request.num_committed_tokens, request.num_cached_tokens), request.num_prompt_tokens),
        0.0 if admitted_at is None else 1000 * (time.perf_counter() - admitted_at),
    )
