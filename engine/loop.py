"""The engine's loop: overlapped, and its synchronous twin as the oracle.

device  |   step N            |   step N+1            |   step N+2
host    | schedule, dispatch N+1, tell | result N, commit N, schedule, dispatch N+2 | …
asyncio |       … events of N-1 …                  |        events of N …

Where a row of step N+1 has a grammar, what it may sample follows from its token of step N. Such a
step is dispatched in two halves, and the device finds no gap between them:

device  | sample N | forward N+1                                | sample N+1 | forward N+2
host    | … forward N+1 | result N, commit N | masks, sample N+1 | schedule, forward N+2 | …
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from engine.border.types import FinishReason
from engine.schedule.plan import StepPlan
from engine.schedule.request import Request
from engine.schedule.scheduler import Scheduler
from engine.schedule.step_event import StepEvent
from engine.step.masks import fill_masks
from engine.step.pending_step import PendingStep
from engine.step.runner import Runner
from engine.timeline import Timeline

IDLE_TURN_SECONDS = 0.5  # an idle loop turns this often, so that a heartbeat proves it alive


@dataclass(frozen=True, slots=True)
class Abort:
    """Inbox message: end the request of this id."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Call:
    """Inbox message: run this in the engine thread while nothing is in flight."""

    function: Callable[[], None]  # takes care of its own exceptions


class Shutdown:
    """Inbox message: end every request and the thread."""


Message = Request | Abort | Call | Shutdown


class EngineLoop:
    """Owns scheduler and runner; everything but `post` runs in the engine thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        publish: Callable[[Sequence[StepEvent]], None],
        on_failure: Callable[[BaseException], None],
        *,
        overlap: bool,
        timeline: Timeline,
    ) -> None:
        """Args:
        publish: called in the engine thread, once a turn at most, with all its events; must not block.
        on_failure: called in the engine thread with the exception that ends it.
        timeline: told of every step.
        """
        self.scheduler = scheduler
        self.timeline = timeline
        self.heartbeat = time.monotonic()
        self._runner = runner
        self._publish = publish
        self._on_failure = on_failure
        self._overlap = overlap
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._calls: deque[Call] = deque()
        self._untold: list[StepEvent] = []  # events that are not published yet, in order
        self._is_stopping = False
        self.is_in_call = False  # a call may take far longer than a turn
        self.is_paused = False  # set by a Call: no step is planned, requests only queue up
        self._thread = threading.Thread(target=self.run, name="eagre-engine", daemon=True)

    def start(self) -> None:
        self.heartbeat = time.monotonic()
        self._thread.start()

    def post(self, message: Message) -> None:
        """Leaves a message for the next turn; from any thread."""
        self._inbox.put(message)

    def join(self, timeout: float | None = None) -> bool:
        """Waits for the thread to end; whether it did."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def run(self) -> None:
        """The thread's body. An exception ends the loop, for good: there is no retry."""
        try:
            if self._overlap:
                self._run_overlapped()
            else:
                self._run_synchronously()
        except BaseException as error:  # noqa: BLE001
            # The boundary of the thread: whatever happened must reach the streams, then the process ends.
            # A panic of a Rust library is no Exception either.
            try:
                self._tell()  # what was true before
            finally:
                self._on_failure(error)

    def _run_overlapped(self) -> None:
        """Dispatches step N+1 before it waits for step N."""
        in_flight: PendingStep | None = None
        did_work = False
        while self._receive(may_wait=not did_work):
            dispatched = self._dispatch()
            self._tell()
            if in_flight is not None:
                self._commit(in_flight)
            if dispatched is not None and dispatched.step.awaits_masks:
                self._sample(dispatched)
            did_work = dispatched is not None or in_flight is not None
            in_flight = dispatched
            if in_flight is None:
                self._tell()  # before a call: it may be long, and its own end is told at once
                did_work |= self._run_calls()
        if in_flight is not None:
            self._commit(in_flight)
        self._tell()

    def _run_synchronously(self) -> None:
        """The same steps, one after the other."""
        did_work = False
        while self._receive(may_wait=not did_work):
            dispatched = self._dispatch()
            did_work = dispatched is not None
            if dispatched is not None:
                if dispatched.step.awaits_masks:
                    self._sample(dispatched)
                self._commit(dispatched)
            self._tell()
            did_work |= self._run_calls()
        self._tell()

    def _dispatch(self) -> PendingStep | None:
        """Hands the next step to the device, or returns None where there is none to plan now."""
        self.timeline.schedule_began(has_work=self._has_work)
        plan = self._plan()
        if plan is None:
            return None
        self.timeline.dispatch_began()
        pending = self._runner.dispatch(plan)
        self.timeline.dispatched(partial(self._runner.is_done, pending), plan.num_rows, plan.num_scheduled_tokens)
        return pending

    def _sample(self, dispatched: PendingStep) -> None:
        """Dispatches the sampling of a step whose forward pass is under way.

        The step before it has been committed, so its grammars know their last token; their masks are
        made while the device computes the logits that they will meet.
        """
        masks = self._runner.new_masks(dispatched)
        for request, error in fill_masks(dispatched, masks):
            event = self.scheduler.fail(request, error)
            if event is not None:
                self._untold.append(event)
        self._runner.sample(dispatched, masks)

    def _plan(self) -> StepPlan | None:
        """The next step; none while paused, nor while calls wait for the pipeline to drain."""
        return None if self._calls or self.is_paused else self.scheduler.schedule()

    def _run_calls(self) -> bool:
        """Runs what waited for the pipeline to drain; whether there was anything."""
        had_calls = bool(self._calls)
        self.is_in_call = had_calls
        while self._calls:
            self._calls.popleft().function()
        self.heartbeat = time.monotonic()
        self.is_in_call = False
        return had_calls

    def _tell(self) -> None:
        """Publishes what has happened since the last time.

        The overlapped loop does so behind a dispatch: readers that wake up want the interpreter
        lock, and the device shall not wait for them.
        """
        events, self._untold = self._untold, []
        if events:
            self._publish(events)

    def _commit(self, pending: PendingStep) -> None:
        """Waits for the oldest step and makes it true on the host."""
        self.timeline.wait_began()
        result = self._runner.result(pending)
        self.timeline.commit_began()
        self._untold += self.scheduler.commit(pending.plan, result)
        self.timeline.commit_ended(has_work=self._has_work)

    @property
    def _has_work(self) -> bool:
        """Whether a request waits for the device; while paused none does, by somebody's will."""
        return self.scheduler.has_work and self.scheduler.may_work and not self.is_paused

    def _receive(self, *, may_wait: bool) -> bool:
        """Drains the inbox, once a turn; waits for a message where the last turn found nothing to do.

        Returns:
            False once a Shutdown has come.
        """
        while True:
            try:
                message = self._inbox.get(timeout=IDLE_TURN_SECONDS) if may_wait else self._inbox.get_nowait()
            except queue.Empty:
                if may_wait:
                    self.scheduler.check_idle()
                break
            may_wait = False
            match message:
                case Request():
                    self.scheduler.add(message)
                case Abort():
                    event = self.scheduler.abort(message.request_id)
                    if event is not None:
                        self._untold.append(event)
                case Call():
                    self._calls.append(message)
                case Shutdown():
                    self._is_stopping = True
                    self._untold += self.scheduler.abort_all(FinishReason.ABORT)
        self.heartbeat = time.monotonic()
        self._untold += self.scheduler.expire(self.heartbeat)
        return not self._is_stopping
