"""A thread within a server that records what delays streams: pauses of the asyncio loop, of the interpreter lock and of
an engine thread, long steps, and garbage collections.

    python -m benchmarks.chaos.watcher PAUSES serve --port 8000

runs `eagre` with such a thread, which writes to the file PAUSES. Processes that have compiled a grammar end after
seconds, because a round waits for their end.
"""

import asyncio
import contextlib
import gc
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

from benchmarks.chaos.pauses import COLLECTOR, ENGINE, LOCK, LOOP, STEP, Pause
from engine.loop import EngineLoop
from engine.timeline import StepTimes, Timeline
from server.cli import serve as serving
from server.cli.main import main
from server.structured_output import sandboxed_compiler

IDLE_SECONDS = 5.0  # of a process that compiles grammars
LEAST_PAUSE_S = 0.005  # that is noted
INTERVAL_S = 0.001  # between two looks
REST_S = 0.002  # between two beats of the loop
MOST_FRAMES = 4  # of a culprit's stack that are shown, the innermost first
LEAST_SHARE = 0.2  # of a pause that a thread must have computed to be named
_THREAD_CLOCK = 0b110  # of one thread, in nanoseconds (include/linux/posix-timers.h)


class Watcher(threading.Thread):
    """Posts a callback to the loop every few milliseconds, and writes pauses to a file.

    How late it wakes up is how long the interpreter lock was taken; each thread's clock says which one computed
    meanwhile.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, path: Path, timelines: Callable[[], list[Timeline]], main: int
    ) -> None:
        """Args:
        timelines: those of the engines that run now.
        main: the id of the thread in which the loop runs.
        """
        super().__init__(name="watcher", daemon=True)
        self._loop = loop
        self._path = path
        self._timelines = timelines
        self._main = main
        self._cpu: dict[int, float] = {}  # seconds that each thread had computed at the last look
        self._last_steps: dict[int, int] = {}  # of each timeline, by its id
        self._beaten = 0.0
        self._collection_began = 0.0
        self._collections: deque[Pause] = deque()

    def run(self) -> None:
        gc.callbacks.append(self._note_collection)
        try:
            with self._path.open("ab", buffering=0) as file:
                while not self._loop.is_closed():
                    pauses = [*self._watch_beat(), *self._engine_pauses()]
                    while self._collections:
                        pauses.append(self._collections.popleft())
                    for pause in pauses:
                        file.write(pause.to_line())
                    time.sleep(REST_S)
        finally:
            gc.callbacks.remove(self._note_collection)

    def _note_collection(self, phase: str, info: dict[str, Any]) -> None:
        """Called in the thread that collects, at the begin and the end; one collection runs at a time."""
        if phase == "start":
            self._collection_began = time.perf_counter()
            return
        seconds = time.perf_counter() - self._collection_began
        if self._collection_began and seconds >= LEAST_PAUSE_S:
            culprit = (
                f"generation {info['generation']}, {info['collected']} objects, in {threading.current_thread().name}"
            )
            self._collections.append(Pause(COLLECTOR, self._collection_began, seconds, culprit))

    def _watch_beat(self) -> list[Pause]:
        """The pauses until the loop has run one more callback."""
        pauses: list[Pause] = []
        self._beaten = 0.0
        before = self._cpu = _processor_seconds()
        posted, places = time.perf_counter(), Counter[str]()
        try:
            self._loop.call_soon_threadsafe(self._beat)
        except RuntimeError:  # the loop has just been closed
            return []
        while not self._beaten and not self._loop.is_closed():
            began = time.perf_counter()
            time.sleep(INTERVAL_S)
            late = time.perf_counter() - began - INTERVAL_S
            if late >= LEAST_PAUSE_S:
                pauses.append(Pause(LOCK, began, late, self._who_computed(late)))
            self._cpu = _processor_seconds()
            if not self._beaten and time.perf_counter() - posted >= LEAST_PAUSE_S / 2:
                places[_where(sys._current_frames().get(self._main))] += 1
        seconds = self._beaten - posted
        if seconds >= LEAST_PAUSE_S:
            computed = self._cpu.get(self._main, 0.0) - before.get(self._main, 0.0)
            culprit = f"computed {computed / seconds:.0%} of it"
            if places:
                ((place, count),) = places.most_common(1)
                culprit += f"; in {count} of {places.total()} looks: {place}"
            pauses.append(Pause(LOOP, posted, seconds, culprit, computed))
        return pauses

    def _beat(self) -> None:
        self._beaten = time.perf_counter()

    def _who_computed(self, seconds: float) -> str:
        """The threads that computed in the last `seconds`, the most busy first, with its stack."""
        frames, now = sys._current_frames(), _processor_seconds()
        frames.pop(self.ident or 0, None)  # it would keep this table, and with it the variables of every thread
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        shares = {ident: (now[ident] - self._cpu.get(ident, 0.0)) / seconds for ident in now if ident != self.ident}
        busy = sorted((ident for ident in shares if shares[ident] >= LEAST_SHARE), key=lambda ident: -shares[ident])
        shown = [f"{names.get(ident, '?')} {shares[ident]:.0%}" for ident in busy]
        return f"{', '.join(shown)}: {_where(frames.get(busy[0]))}" if busy else ""

    def _engine_pauses(self) -> list[Pause]:
        """The long parts of host and device in the steps that were committed since the last call."""
        pauses = []
        for timeline in self._timelines():
            steps = timeline.last_steps(64)
            last = self._last_steps.get(id(timeline), -1)
            for times in steps:
                if times.step > last:
                    pauses += _step_pauses(times)
            if steps:
                self._last_steps[id(timeline)] = steps[-1].step
        return pauses


def engine_timelines() -> list[Timeline]:
    loops = [getattr(getattr(thread, "_target", None), "__self__", None) for thread in threading.enumerate()]
    return [loop.timeline for loop in loops if isinstance(loop, EngineLoop)]


def _step_pauses(times: StepTimes) -> list[Pause]:
    computed = f"{times.num_rows} rows, {times.num_tokens} tokens"
    parts = [
        Pause(ENGINE, times.schedule_began, times.dispatched - times.schedule_began),
        Pause(ENGINE, times.commit_began, times.commit_ended - times.commit_began),
        Pause(STEP, times.device_began, times.device_ended - times.device_began, computed),
    ]
    return [part for part in parts if part.seconds >= LEAST_PAUSE_S]


def _processor_seconds() -> dict[int, float]:
    """What each thread of Python has computed since its start, by the thread's id; nothing where the system is not
    Linux.
    """
    seconds: dict[int, float] = {}
    for thread in threading.enumerate():
        if thread.ident is not None and thread.native_id is not None:
            # The kernel's name for a thread's clock. pthread_getcpuclockid would make the same of a thread's address,
            # and may crash where the thread has just ended.
            with contextlib.suppress(OSError):
                seconds[thread.ident] = time.clock_gettime(~thread.native_id << 3 | _THREAD_CLOCK)
    return seconds


def _where(frame: FrameType | None) -> str:
    shown: list[str] = []
    while frame is not None and len(shown) < MOST_FRAMES:
        code: object = frame.f_code
        if not isinstance(code, CodeType):  # CPython 3.11: the frame has ended in its thread since it was found
            break
        file = Path(code.co_filename)
        shown.append(f"{file.parent.name}/{file.name}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return " < ".join(shown)


def watched_main(arguments: Sequence[str]) -> int:
    """Runs the command line that follows the path of the file; its exit status."""
    path, *rest = arguments
    serve = serving.serve

    async def watched(*args: Any, **kwargs: Any) -> int:
        Watcher(asyncio.get_running_loop(), Path(path), engine_timelines, threading.get_ident()).start()
        return await serve(*args, **kwargs)

    idle = patch.object(sandboxed_compiler, "IDLE_SECONDS", IDLE_SECONDS)
    with idle, patch.object(serving, "serve", watched):
        return main(rest)


if __name__ == "__main__":
    sys.exit(watched_main(sys.argv[1:]))
