"""The timeline of steps: when each was scheduled, dispatched, computed and committed, and how long the device was idle.

host    | schedule | dispatch N+1 | wait N | commit N | schedule | dispatch N+2 | …
device  |     step N            |  step N+1                    | step N+2 …

The device does not report its times, so they are derived from what the host sees:

- A step begins at the end of its dispatch or at the end of the step before it, whichever is later.
- If the host had to wait for a step, the step ends when the wait returns. The exception is a wait after which the next
step is done as well: then the host woke up late, and the end of the wait means nothing.
- Any other step ends between the last mark at which it was unfinished and the first mark at which it was done. The
earlier one is taken, so the step is as short, and the idle time behind it as long, as possible.

So the idle time is an upper bound in the overlapped loop, where another step follows the one that the host waits for.
In the synchronous loop none follows, and the time until the host wakes up counts as part of the step. Time before a
step counts as idle only while a request waits for the device.
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from engine.interface.types import STEP_TOKEN_BOUNDS, TraceEvent

_PROCESS_ID = 1
_DEVICE_LANE = 1
_HOST_LANE = 2
_MAX_UNKNOWN = 0.05  # of a step's duration, where somebody wants to rely on it


@dataclass(slots=True)
class StepTimes:
    """The marks of one step, in seconds of the timeline's clock; a mark that has not come yet is infinite."""

    step: int  # counted from 0 in the order of dispatch
    num_rows: int
    num_tokens: int
    schedule_began: float
    dispatch_began: float
    dispatched: float
    work_since: float  # when work began to wait without a break
    seen_unfinished: float  # the last mark at which the step was unfinished
    seen_done: float = inf  # the first mark at which the step was done
    wait_began: float = inf
    commit_began: float = inf
    commit_ended: float = inf
    device_began: float = inf
    device_ended: float = inf  # the earliest possible end; the latest is `seen_done`
    busy_total: float = inf  # device_busy_seconds up to and with this step
    idle_total: float = inf  # device_idle_seconds up to the begin of this step


class Timeline:
    """The times of the last steps, and the totals since the start.

    The engine loop calls one method at each mark; any thread may read without a lock. A turn calls `schedule_began`,
    `dispatch_began` and `dispatched` for a new step, `dispatched` again for each further step of the same program, and
    `wait_began`, `commit_began` and `commit_ended` for the oldest step in flight.
    """

    def __init__(self, num_steps: int = 4096, clock: Callable[[], float] = time.perf_counter) -> None:
        """Makes a timeline that starts now and remembers `num_steps` committed steps."""
        self.device_busy_seconds = 0.0  # since the start; never reset
        self.device_idle_seconds = 0.0  # since the start, while work waited; never reset
        self.num_step_tokens = 0  # of all steps since the start
        self.step_token_counts = [0] * (len(STEP_TOKEN_BOUNDS) + 1)  # steps since the start; see EngineStats
        self._clock = clock
        self._origin = clock()
        self._num_dispatched = 0
        # `is_done` is not stored in StepTimes, or committed steps would keep their arrays alive.
        self._in_flight: deque[tuple[StepTimes, Callable[[], bool]]] = deque()
        self._committed: deque[StepTimes] = deque(maxlen=num_steps)
        self._schedule_began = 0.0
        self._dispatch_began = 0.0
        self._work_since: float | None = None
        self._device_ended = -inf

    # ---------------------------------------------------------------- marks

    def schedule_began(self, *, has_work: bool) -> None:
        """Marks the begin of a turn; `has_work` says whether a request waits for the device."""
        self._schedule_began = self._mark()
        self._note_work(has_work, self._schedule_began)

    def dispatch_began(self) -> None:
        """Marks that a step was planned and is being dispatched."""
        self._dispatch_began = self._mark()

    def dispatched(self, is_done: Callable[[], bool], num_rows: int, num_tokens: int) -> None:
        """Marks that the device has the step; `is_done` tells without blocking whether it has finished it."""
        now = self._mark()
        work_since = now if self._work_since is None else self._work_since
        times = StepTimes(
            self._num_dispatched, num_rows, num_tokens, self._schedule_began, self._dispatch_began, now, work_since, now
        )
        self._in_flight.append((times, is_done))
        self._num_dispatched += 1
        self._schedule_began = self._dispatch_began = now  # of the next step, where the same program computes it

    def withdrawn(self, num_steps: int) -> None:
        """Marks that the device does not compute so many of the steps dispatched last, of which it has begun none."""
        for _ in range(num_steps):
            self._in_flight.pop()
        self._num_dispatched -= num_steps

    def wait_began(self) -> None:
        """Marks that the host waits for the result of the oldest step."""
        now = self._mark()
        self._in_flight[0][0].wait_began = now

    def commit_began(self) -> None:
        """Marks that the host has the result of the oldest step."""
        times, _ = self._in_flight[0]
        times.commit_began = now = self._clock()
        if times.seen_done == inf:
            times.seen_done = now
            if not self._is_next_done(now):
                times.seen_unfinished = now

    def commit_ended(self, *, has_work: bool) -> float | None:
        """Marks that the oldest step is committed; returns the device's seconds, or None if known too roughly."""
        now = self._clock()
        times, _ = self._in_flight.popleft()
        times.commit_ended = now
        times.device_began = began = max(times.dispatched, self._device_ended)
        times.device_ended = ended = max(times.seen_unfinished, began)
        self.device_idle_seconds += max(began - max(self._device_ended, times.work_since), 0.0)
        self.device_busy_seconds += ended - began
        times.idle_total, times.busy_total = self.device_idle_seconds, self.device_busy_seconds
        self._device_ended = ended
        self._committed.append(times)
        # Here, because steps that are dispatched may be withdrawn, and a count must never fall.
        self.num_step_tokens += times.num_tokens
        self.step_token_counts[bisect_left(STEP_TOKEN_BOUNDS, times.num_tokens)] += 1
        self._note_work(has_work, now)
        seconds = ended - began
        return seconds if times.seen_done - ended <= _MAX_UNKNOWN * seconds else None

    def _mark(self) -> float:
        """Returns the time, and notes whether the oldest step is done."""
        now = self._clock()
        if self._in_flight:
            times, is_done = self._in_flight[0]
            if times.seen_done == inf:
                if is_done():
                    times.seen_done = now
                else:
                    times.seen_unfinished = now
        return now

    def _is_next_done(self, now: float) -> bool:
        """Whether the step behind the oldest one is done already."""
        if len(self._in_flight) < 2:
            return False
        times, is_done = self._in_flight[1]
        if is_done():
            times.seen_done = now
        else:
            times.seen_unfinished = now
        return times.seen_done == now

    def _note_work(self, has_work: bool, now: float) -> None:
        if not has_work:
            self._work_since = None
        elif self._work_since is None:
            self._work_since = now

    # ---------------------------------------------------------------- readers

    @property
    def recent_idle_fraction(self) -> float:
        """Idle share of the time in which there was work, 0 to 1, over the remembered steps but the first."""
        if not self._committed:
            return 0.0
        first, last = self._committed[0], self._committed[-1]
        return _share(last.idle_total - first.idle_total, last.busy_total - first.busy_total)

    def last_steps(self, most: int) -> list[StepTimes]:
        """The last committed steps, at most `most` of them, oldest first."""
        steps = self._committed.copy()  # atomic, while the engine thread appends
        return [steps[at] for at in range(max(len(steps) - most, 0), len(steps))]

    def now(self) -> float:
        """The time on the clock of the marks, in seconds."""
        return self._clock()

    def export_trace(self, num_steps: int | None = None) -> list[TraceEvent]:
        """The last committed steps in the Trace Event Format, as Perfetto and chrome://tracing read it.

        Times are microseconds since the timeline was made. In a slice of the device, `end_unknown_us` is how much later
        than drawn the step may have ended. `{"traceEvents": events}` as JSON is a trace file.
        """
        steps = list(self._committed)
        if num_steps is not None:
            steps = steps[max(len(steps) - num_steps, 0) :]
        slices = [event for times in steps for event in self._slices(times)]
        slices.sort(key=lambda event: event["ts"])
        return [
            _metadata("process_name", None, {"name": "eagre engine"}),
            _metadata("thread_name", _DEVICE_LANE, {"name": "device"}),
            _metadata("thread_sort_index", _DEVICE_LANE, {"sort_index": _DEVICE_LANE}),
            _metadata("thread_name", _HOST_LANE, {"name": "host"}),
            _metadata("thread_sort_index", _HOST_LANE, {"sort_index": _HOST_LANE}),
            *slices,
        ]

    def _slices(self, times: StepTimes) -> list[TraceEvent]:
        """The five slices of one step."""
        args = {"step": times.step, "rows": times.num_rows, "tokens": times.num_tokens}
        end_unknown = max(times.seen_done - times.device_ended, 0.0)
        device_args = {**args, "end_unknown_us": round(1e6 * end_unknown, 3)}

        def event(name: str, lane: int, began: float, ended: float, args: dict[str, Any]) -> TraceEvent:
            begin, end = (round(1e6 * (moment - self._origin), 3) for moment in (began, ended))
            return {
                "name": name, "ph": "X", "ts": begin, "dur": round(end - begin, 3),
                "pid": _PROCESS_ID, "tid": lane, "args": args,
            }  # fmt: skip

        return [
            event("schedule", _HOST_LANE, times.schedule_began, times.dispatch_began, args),
            event("dispatch", _HOST_LANE, times.dispatch_began, times.dispatched, args),
            event("wait", _HOST_LANE, times.wait_began, times.commit_began, args),
            event("commit", _HOST_LANE, times.commit_began, times.commit_ended, args),
            event("step", _DEVICE_LANE, times.device_began, times.device_ended, device_args),
        ]


def _share(idle: float, busy: float) -> float:
    return idle / (idle + busy) if idle + busy else 0.0


def _metadata(name: str, lane: int | None, args: dict[str, Any]) -> TraceEvent:
    event: TraceEvent = {"name": name, "ph": "M", "pid": _PROCESS_ID, "args": args}
    if lane is not None:
        event["tid"] = lane
    return event
