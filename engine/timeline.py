"""When each step was scheduled, dispatched, computed and committed, and how long the device stood idle.

host    | schedule | dispatch N+1 | wait N | commit N | schedule | dispatch N+2 | …
device  |     step N            |  step N+1                    | step N+2 …

The device does not tell its own times; they follow from what the host sees:

- A step begins at the end of its dispatch or at the end of the step before it, whichever is later.
- A step for which the host had to wait ends when the wait returns.
- Any other step ends between the last mark of the loop that saw it unfinished and the first that
  saw it done. The former is taken: such a step is as short, and the idle time behind it as long,
  as the marks allow.

So idle time is an upper bound, with one exception: the time in which a waiting host wakes up is
taken for the step's. It is smaller than the overlapped loop needs it to be, since there the next
step is on the device before the wait begins.

The device is idle between two steps, or before the first one, while work waits: while a request is
with the scheduler that has not sent its last event. Where there is no request, no time counts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from engine.types import TraceEvent

_ROW = np.dtype(
    [
        ("num_rows", np.int32),
        ("num_tokens", np.int32),
        # seconds of the clock
        ("schedule_began", np.float64),
        ("dispatch_began", np.float64),
        ("dispatched", np.float64),
        ("device_began", np.float64),
        ("device_ended", np.float64),  # at the earliest
        ("seen_done", np.float64),  # device_ended, at the latest
        ("wait_began", np.float64),
        ("commit_began", np.float64),
        ("commit_ended", np.float64),
        # seconds
        ("idle_before", np.float64),
    ]
)

_PROCESS_ID = 1
_DEVICE_LANE = 1
_HOST_LANE = 2


@dataclass(slots=True)
class _OpenStep:
    """A step between its dispatch and the end of its commit."""

    is_done: Callable[[], bool]
    num_rows: int
    num_tokens: int
    schedule_began: float
    dispatch_began: float
    dispatched: float
    work_since: float
    seen_unfinished: float  # the last mark at which it was
    seen_done: float = inf
    wait_began: float = 0.0
    commit_began: float = 0.0


class Timeline:
    """Fed by the loop in the engine thread, by one call at each mark; read from any thread without a lock.

    A turn of the loop calls `schedule_began`, `dispatch_began` and `dispatched` for a new step;
    `wait_began`, `commit_began` and `commit_ended` for the oldest one.
    """

    def __init__(self, num_steps: int = 4096, clock: Callable[[], float] = time.perf_counter) -> None:
        """Args:
        num_steps: how many committed steps are remembered.
        clock: seconds, never going back.
        """
        self.device_busy_seconds = 0.0  # since the start; never reset
        self.device_idle_seconds = 0.0  # since the start, while work waited; never reset
        # One row more than is read: the oldest may be in the middle of being overwritten.
        self._ring = np.zeros(num_steps + 1, _ROW)
        self._num_committed = 0
        self._clock = clock
        self._origin = clock()
        self._open_steps: deque[_OpenStep] = deque()
        self._schedule_began = 0.0
        self._dispatch_began = 0.0
        self._work_since: float | None = None
        self._device_ended = -inf

    # ---------------------------------------------------------------- marks

    def schedule_began(self, *, has_work: bool) -> None:
        """Args:
        has_work: whether a request is there that has not sent its last event.
        """
        self._schedule_began = self._mark()
        self._note_work(has_work, self._schedule_began)

    def dispatch_began(self) -> None:
        """There is a step to dispatch."""
        self._dispatch_began = self._mark()

    def dispatched(self, is_done: Callable[[], bool], num_rows: int, num_tokens: int) -> None:
        """The device has the step.

        Args:
            is_done: whether the device has finished it; must not block.
        """
        now = self._mark()
        work_since = now if self._work_since is None else self._work_since
        self._open_steps.append(
            _OpenStep(
                is_done, num_rows, num_tokens, self._schedule_began, self._dispatch_began, now, work_since, now
            )
        )  # fmt: skip

    def wait_began(self) -> None:
        """The host asks for the result of the oldest step."""
        self._open_steps[0].wait_began = self._mark()

    def commit_began(self) -> None:
        """The result is there."""
        step = self._open_steps[0]
        step.commit_began = self._clock()
        if step.seen_done == inf:
            step.seen_done = step.seen_unfinished = step.commit_began

    def commit_ended(self, *, has_work: bool) -> None:
        """The oldest step is true on the host, and its events are on their way.

        Args:
            has_work: as in `schedule_began`.
        """
        now = self._clock()
        step = self._open_steps.popleft()
        began = max(step.dispatched, self._device_ended)
        idle = max(began - max(self._device_ended, step.work_since), 0.0)
        ended = max(began, step.seen_unfinished)
        self._ring[self._num_committed % len(self._ring)] = (
            step.num_rows, step.num_tokens, step.schedule_began, step.dispatch_began, step.dispatched, began, ended,
            step.seen_done, step.wait_began, step.commit_began, now, idle,
        )  # fmt: skip
        self._num_committed += 1
        self._device_ended = ended
        self.device_busy_seconds += ended - began
        self.device_idle_seconds += idle
        self._note_work(has_work, now)

    def _mark(self) -> float:
        """The time, noted in the oldest step for what is seen of it now."""
        now = self._clock()
        if self._open_steps:
            step = self._open_steps[0]
            if step.seen_done == inf:
                if step.is_done():
                    step.seen_done = now
                else:
                    step.seen_unfinished = now
        return now

    def _note_work(self, has_work: bool, now: float) -> None:
        if not has_work:
            self._work_since = None
        elif self._work_since is None:
            self._work_since = now

    # ---------------------------------------------------------------- readers

    @property
    def idle_fraction(self) -> float:
        """Idle share of the time in which there was work, since the start, 0 to 1."""
        return _share(self.device_idle_seconds, self.device_busy_seconds)

    @property
    def recent_idle_fraction(self) -> float:
        """The same over the steps that are remembered."""
        _, rows = self._committed_rows()
        return _share(float(rows["idle_before"].sum()), float((rows["device_ended"] - rows["device_began"]).sum()))

    def export_trace(self, num_steps: int | None = None) -> list[TraceEvent]:
        """The last steps in the Trace Event Format, as Perfetto and chrome://tracing read it.

        Times are microseconds since this timeline was made. A step's `end_unknown_us` tells how much
        later than drawn it may have ended on the device.

        Args:
            num_steps: at most so many; all that are remembered where it is None.

        Returns:
            The events, metadata first, then by time; `{"traceEvents": events}` is a trace file's JSON.
        """
        first, rows = self._committed_rows()
        if num_steps is not None:
            first += max(len(rows) - num_steps, 0)
            rows = rows[max(len(rows) - num_steps, 0) :]
        slices = [event for step, row in enumerate(rows, first) for event in self._slices(step, row)]
        slices.sort(key=lambda event: event["ts"])
        return [
            _metadata("process_name", None, name="eagre engine"),
            _metadata("thread_name", _DEVICE_LANE, name="device"),
            _metadata("thread_sort_index", _DEVICE_LANE, sort_index=_DEVICE_LANE),
            _metadata("thread_name", _HOST_LANE, name="host"),
            _metadata("thread_sort_index", _HOST_LANE, sort_index=_HOST_LANE),
            *slices,
        ]

    def _committed_rows(self) -> tuple[int, np.ndarray[Any, np.dtype[np.void]]]:
        """The number of the oldest remembered step, and a copy of the rows from it on."""
        end = self._num_committed
        ring = self._ring.copy()
        # What the engine thread has written, or was writing, since then is not to be read.
        first = max(self._num_committed - len(ring) + 1, 0)
        return first, ring[np.arange(first, end) % len(ring)]

    def _slices(self, step: int, row: np.void) -> list[TraceEvent]:
        """The five slices of one step."""
        args = {"step": step, "rows": int(row["num_rows"]), "tokens": int(row["num_tokens"])}
        end_unknown = round(1e6 * max(float(row["seen_done"] - row["device_ended"]), 0.0), 3)

        def event(name: str, lane: int, began: str, ended: str, args: dict[str, int | float]) -> TraceEvent:
            begin, end = (round(1e6 * (float(row[column]) - self._origin), 3) for column in (began, ended))
            return {
                "name": name, "ph": "X", "ts": begin, "dur": round(end - begin, 3),
                "pid": _PROCESS_ID, "tid": lane, "args": args,
            }  # fmt: skip

        return [
            event("schedule", _HOST_LANE, "schedule_began", "dispatch_began", args),
            event("dispatch", _HOST_LANE, "dispatch_began", "dispatched", args),
            event("wait", _HOST_LANE, "wait_began", "commit_began", args),
            event("commit", _HOST_LANE, "commit_began", "commit_ended", args),
            event("step", _DEVICE_LANE, "device_began", "device_ended", {**args, "end_unknown_us": end_unknown}),
        ]


def _share(idle: float, busy: float) -> float:
    return idle / (idle + busy) if idle + busy else 0.0


def _metadata(name: str, lane: int | None, **args: str | int) -> TraceEvent:
    event: TraceEvent = {"name": name, "ph": "M", "pid": _PROCESS_ID, "args": args}
    if lane is not None:
        event["tid"] = lane
    return event
