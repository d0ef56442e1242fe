"""The loop of the engine thread, overlapped or synchronous; the synchronous one is the oracle of the other.

The overlapped loop dispatches a step before it waits for the step before it:

device  |   step N               |   step N+1            |   step N+2
host    | schedule, dispatch N+1, publish | result N, commit N, schedule, dispatch N+2 | …
asyncio |       … events of N-1 …                  |        events of N …

If a row of step N+1 has a grammar, its token of step N decides what it may sample. Such a step is
dispatched in two halves, and the device still has no gap between them:

device  | sample N | forward N+1                                | sample N+1 | forward N+2
host    | … forward N+1 | result N, commit N | masks, sample N+1 | schedule, forward N+2 | …

While every row decodes, nobody waits and nothing happens, one program computes several steps, a burst, and tells of
each when it has sampled. Their results are committed and published one by one, as ever:

device  |   step N        |   step N+1      |   step N+2      |   step N+3 …
host    | dispatch N to N+15 | commit N      | commit N+1      | commit N+2 …

Whatever comes between, a message, the end of a request or a step of another model of this process, cuts the burst: the
steps that the device has not begun are withdrawn, and the loop goes on as if they had never been planned.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

from engine.interface.types import FinishReason
from engine.kv_transfer.transfers import PageTransfers
from engine.progress_reports import ProgressReports
from engine.schedule.request import Request
from engine.schedule.request_event import NewTokens, StepEvent
from engine.schedule.scheduler import Scheduler
from engine.schedule.step_plan import StepPlan
from engine.step.grammar_masks import fill_masks
from engine.step.picture_encoding import PictureEncoding
from engine.step.runner import PendingStep, Runner
from engine.timeline import Timeline

IDLE_TURN_SECONDS = 0.5  # an idle loop turns this often, so that its heartbeat shows that it is alive

# The loops of this process that have steps in flight. On a CPU, XLA has as many threads as there are cores, and a
# program keeps one until it ends: the step of another model may have to wait for all steps of a burst.
BUSY_LOOPS: set[object] = set()


@dataclass(frozen=True, slots=True)
class Abort:
    """Inbox message: end the request with this id."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Call:
    """Inbox message: run a function in the engine thread while nothing is in flight."""

    function: Callable[[], None]  # an exception that it lets through ends the engine


class PageArrived:
    """Inbox message: a page that a request waits for was loaded."""


class PictureEncoded:
    """Inbox message: the embeddings of a picture can be stored."""


class Shutdown:
    """Inbox message: end all requests, and then the thread."""


Message = Request | Abort | Call | PageArrived | PictureEncoded | Shutdown


class EngineLoop:
    """Runs the scheduler and the runner, in the engine thread but for `start`, `post`, `join` and `is_running`."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        publish: Callable[[Sequence[StepEvent]], None],
        on_failure: Callable[[BaseException], None],
        *,
        overlap: bool,
        timeline: Timeline,
        transfers: PageTransfers | None = None,
        pictures: PictureEncoding | None = None,
        inbox: queue.SimpleQueue[Message] | None = None,
        busy_loops: set[object] | None = None,
    ) -> None:
        """Makes a loop whose thread is not started yet.

        Args:
            publish: called in the engine thread, at most once a turn, with all its events; must not block.
            on_failure: called in the engine thread with the exception that ends it.
            overlap: whether to dispatch the next step before the result of the last one is there.
            busy_loops: where loops of one device note that they have steps in flight; None: those of this process.
        """
        self.scheduler = scheduler
        self.timeline = timeline
        self.heartbeat = time.monotonic()
        self._runner = runner
        self._publish = publish
        self._on_failure = on_failure
        self._overlap = overlap
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue() if inbox is None else inbox
        self._pictures = pictures
        if pictures is not None:
            pictures.on_end = partial(self._inbox.put, PictureEncoded())
        self._in_flight = deque[PendingStep]()  # in the order of their dispatch
        self._busy_loops = BUSY_LOOPS if busy_loops is None else busy_loops
        self._is_disturbed = False  # since the last turn, something has come between a burst and its end
        self._has_encoded = False  # a picture was being encoded in this turn or the one before
        self._transfers = transfers
        if transfers is not None:
            transfers.on_arrival = partial(self._inbox.put, PageArrived())
        self._calls: deque[Call] = deque()
        self._unpublished: list[StepEvent] = []  # unpublished, in order
        self._progress = ProgressReports(scheduler)
        self._is_stopping = False
        self.is_in_call = False  # so that a long call is not taken for a dead loop
        self.is_paused = False  # set by a Call; while it is set, no step is planned and requests queue up
        self.thread = threading.Thread(target=self.run, name="eagre-engine", daemon=True)

    def start(self) -> None:
        self.heartbeat = time.monotonic()
        self.thread.start()

    def post(self, message: Message) -> None:
        """Puts a message into the inbox for the next turn."""
        self._inbox.put(message)

    def join(self, timeout: float | None = None) -> bool:
        """Waits for the thread to end; returns False if `timeout` seconds passed first."""
        if self.thread.ident is not None:
            self.thread.join(timeout)
        return not self.thread.is_alive()

    @property
    def is_running(self) -> bool:
        return self.thread.is_alive()

    def run(self) -> None:
        """The thread's function. An exception ends the loop; there is no retry."""
        try:
            if self._overlap:
                self._run_overlapped()
            else:
                self._run_synchronously()
        except BaseException as error:  # noqa: BLE001
            # This is the boundary of the thread: every failure must reach the streams before the process ends. The
            # panic of a Rust library is not an Exception.
            try:
                self._publish_events()  # the events from before the failure
            finally:
                self._on_failure(error)
        finally:
            if self._pictures is not None:
                self._pictures.close()
            self._busy_loops.discard(self)

    def _run_overlapped(self) -> None:
        """Dispatches step N+1 before it waits for step N."""
        in_flight = self._in_flight
        did_work = False
        while self._receive(may_wait=not did_work):
            has_moved = self._import()
            is_alone = self._is_alone
            if self._is_disturbed or not is_alone:
                self._cut()
            has_pending, dispatched = bool(in_flight), None
            if len(in_flight) < 2:
                dispatched = self._dispatch(most_ahead=self._runner.max_burst_steps - 1 if is_alone else 0)
            has_moved |= self._export()
            self._publish_events()
            if has_pending:
                self._commit(in_flight.popleft())
            if dispatched is not None and dispatched.inputs.awaits_masks:
                self._sample(dispatched)
            has_moved |= self._encode()
            did_work = has_pending or bool(in_flight) or has_moved
            if not in_flight:
                self._publish_events()  # before the calls, which may take long
                did_work |= self._run_calls()
        self._cut()
        while in_flight:
            self._commit(in_flight.popleft())
        self._publish_events()
        self._export_all()

    def _run_synchronously(self) -> None:
        """Computes the same steps one after the other."""
        did_work = False
        while self._receive(may_wait=not did_work):
            did_work = self._import()
            dispatched = self._dispatch()
            did_work |= self._export() or dispatched is not None
            if dispatched is not None:
                if dispatched.inputs.awaits_masks:
                    self._sample(dispatched)
                self._commit(self._in_flight.popleft())
            did_work |= self._encode()
            self._publish_events()
            did_work |= self._run_calls()
        self._publish_events()
        self._export_all()

    def _dispatch(self, *, most_ahead: int = 0) -> PendingStep | None:
        """Dispatches the next step, and perhaps some ahead in one program; returns None if there is nothing to do."""
        self.timeline.schedule_began(has_work=self._has_work)
        plan = self._plan()
        if plan is None:
            return None
        self._is_disturbed = False
        plans = [plan, *self.scheduler.plan_ahead(plan, most_ahead)] if most_ahead else [plan]
        self.timeline.dispatch_began()
        steps = [self._runner.dispatch(plan)] if len(plans) == 1 else self._runner.dispatch_burst(plans)
        for step in steps:
            is_done = partial(self._runner.is_done, step)
            self.timeline.dispatched(is_done, step.plan.num_rows, step.plan.num_scheduled_tokens)
        self._in_flight += steps
        self._busy_loops.add(self)
        return steps[0]

    def _cut(self) -> None:
        """Withdraws the steps of a burst that the device has not begun."""
        num_cut = self._runner.cut(self._in_flight[-1]) if len(self._in_flight) > 1 else 0
        for _ in range(num_cut):
            self.scheduler.withdraw(self._in_flight.pop().plan)
        self.timeline.withdrawn(num_cut)

    def _import(self) -> bool:
        """Puts loaded pages into the pool before the next step; returns whether any."""
        return self._transfers is not None and self._may_plan and self._transfers.import_pages()

    def _export(self) -> bool:
        """Enqueues copies of pages to be stored, behind all steps dispatched so far; returns whether any."""
        return self._transfers is not None and self._may_plan and self._transfers.export_pages()

    def _encode(self) -> bool:
        """Stores a picture's embeddings, and begins to encode the next one; returns whether it stored one."""
        if self._pictures is None or not self._may_plan:
            return False
        was_busy = self._pictures.is_busy
        has_stored = self._pictures.advance()
        self._has_encoded = was_busy or self._pictures.is_busy
        return has_stored

    def _export_all(self) -> None:
        """Enqueues as many copies as may be in flight at once, because the thread ends."""
        while self._export():
            pass

    def _sample(self, dispatched: PendingStep) -> None:
        """Samples a step whose forward pass is under way; the masks are made while the device computes the logits.

        The step before it is committed, so the grammars have accepted their last tokens.
        """
        masks = self._runner.new_masks(dispatched)
        for request, error in fill_masks(dispatched, masks):
            event = self.scheduler.fail(request, error)
            if event is not None:
                self._unpublished.append(event)
        self._runner.sample(dispatched, masks)

    def _plan(self) -> StepPlan | None:
        """Plans the next step; none while the loop is paused or while calls wait for the pipeline to drain."""
        return self.scheduler.schedule() if self._may_plan else None

    @property
    def _may_plan(self) -> bool:
        return not (self._calls or self.is_paused)

    def _run_calls(self) -> bool:
        """Runs the calls that waited for the pipeline to drain; returns whether there were any."""
        had_calls = bool(self._calls)
        self.is_in_call = had_calls
        with self._pictures.held() if had_calls and self._pictures is not None else nullcontext():
            while self._calls:
                self._calls.popleft().function()
        self.heartbeat = time.monotonic()
        self.is_in_call = False
        return had_calls

    def _publish_events(self) -> None:
        """Publishes the events since the last time; the overlapped loop does so after a dispatch.

        Readers that wake up compete for the interpreter lock, and the device must not wait for them.
        """
        events, self._unpublished = self._unpublished, []
        if events:
            self._publish(events)

    def _commit(self, pending: PendingStep) -> None:
        """Waits for the oldest step and commits it."""
        self.timeline.wait_began()
        result = self._runner.result(pending)
        self.timeline.commit_began()
        events = self.scheduler.commit(pending.plan, result)
        if not self._in_flight:
            self._busy_loops.discard(self)
        self._unpublished += events
        self._is_disturbed |= any(self._disturbs(event) for event in events)
        seconds = self.timeline.commit_ended(has_work=self._has_work)
        if seconds is not None and not self._has_encoded:
            self.scheduler.learn(pending.plan, seconds)

    @property
    def _is_alone(self) -> bool:
        """Whether no other loop has steps in flight."""
        return self._busy_loops <= {self}

    def _disturbs(self, event: StepEvent) -> bool:
        """Whether a burst should not go on: it computes a request that has ended, or another one may start now."""
        if isinstance(event, NewTokens) or event.finish_reason is None:
            return False
        return event.request.num_in_flight_steps > 0 or self.scheduler.num_waiting > 0

    @property
    def _has_work(self) -> bool:
        """Whether a request waits for the device. While the loop is paused, no time counts as waiting."""
        return self.scheduler.has_work and self.scheduler.may_work and not self.is_paused

    def _receive(self, *, may_wait: bool) -> bool:
        """Drains the inbox, once a turn, or waits for a message if it may; returns False after a Shutdown."""
        # No other thread takes messages, so `get` returns at once where there is one. To ask first costs less than a
        # `queue.Empty` in each turn.
        while may_wait or not self._inbox.empty():
            try:
                message = self._inbox.get(timeout=IDLE_TURN_SECONDS)
            except queue.Empty:
                self.scheduler.check_idle()
                break
            may_wait = False
            self._is_disturbed = True
            match message:
                case Request():
                    self.scheduler.add(message)
                    if message.wants_progress:
                        self._progress.watch(message)
                case Abort():
                    event = self.scheduler.abort(message.request_id)
                    if event is not None:
                        self._unpublished.append(event)
                case Call():
                    self._calls.append(message)
                case PageArrived() | PictureEncoded():
                    pass  # it has woken the loop, which looks for such pages, and for pictures, once a turn
                case Shutdown():
                    self._is_stopping = True
                    self._unpublished += self.scheduler.abort_all(FinishReason.ABORT)
        self.heartbeat = time.monotonic()
        expired = self.scheduler.expire(self.heartbeat)
        if expired:
            self._unpublished += expired
            self._is_disturbed = True
        if self._progress.are_due(self.heartbeat):
            self._unpublished += self._progress.report(is_paused=self.is_paused)
        return not self._is_stopping
