"""An asyncio loop in a daemon thread, for callers that have no loop or another one."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

TICK_SECONDS = 0.1
_CANCEL_SECONDS = 10.0  # ample: a cancelled coroutine only has to abort its requests


class LoopStopped(RuntimeError):
    """The loop has been stopped; nothing runs in it any more."""


class LoopThread:
    """Runs coroutines for synchronous callers, from any number of threads.

    Every coroutine that is posted before `stop` is started, so that `stop` can cancel it. The loop calls `at_end` once
    every coroutine has ended.
    """

    def __init__(self, name: str, at_end: Callable[[], None]) -> None:
        self._at_end = at_end
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[Future[Any], asyncio.Task[Any]] = {}  # touched in the loop alone
        self._stopping: asyncio.Future[None] | None = None
        self._is_stopped = False
        # No post comes after the stop. Reentrant, because a finalizer may run in the middle of a post.
        self._lock = threading.RLock()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run_loop, args=(started,), name=name, daemon=True)
        self._thread.start()
        started.wait()

    def run(self, coroutine: Coroutine[Any, Any, T], on_tick: Callable[[], None] | None = None) -> T:
        """Runs `coroutine` in the loop and waits for its result; raises what it raises, or LoopStopped.

        An exception in the waiting thread, such as KeyboardInterrupt, cancels the coroutine, waits for its end and is
        raised to the caller. `on_tick` is called in the caller's thread, every TICK_SECONDS meanwhile.
        """
        outcome: Future[T] = Future()
        try:  # from here on an interrupt may come between any two instructions
            self._accept(coroutine, outcome)
            while not outcome.done():
                # The system may give a Ctrl-C to another thread, which does not end a wait without a limit here.
                wait((outcome,), TICK_SECONDS)
                if on_tick is not None:
                    on_tick()
        except BaseException:
            if self._call_soon(partial(self._cancel, coroutine, outcome)):
                wait((outcome,), _CANCEL_SECONDS)
            raise
        return outcome.result()

    def spawn(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Runs `coroutine` without waiting, so that a finalizer may call this. A stopped loop drops it."""
        try:
            self._accept(coroutine, Future())
        except LoopStopped:
            return  # what the coroutine was to end has ended with the loop

    def stop(self) -> None:
        """Cancels every coroutine, then ends the thread; does not wait for that. Idempotent."""
        with self._lock:
            if not self._is_stopped:
                self._is_stopped = True
                assert self._loop is not None
                self._loop.call_soon_threadsafe(self._set_stopping)

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped

    def join(self) -> None:
        """Waits for the end of a stopped thread."""
        self._thread.join()

    def _accept(self, coroutine: Coroutine[Any, Any, T], outcome: Future[T]) -> None:
        if not self._call_soon(partial(self._start, coroutine, outcome)):
            coroutine.close()
            raise LoopStopped("the loop has been stopped")

    def _call_soon(self, callback: Callable[[], None]) -> bool:
        with self._lock:
            if self._is_stopped:
                return False
            assert self._loop is not None
            self._loop.call_soon_threadsafe(callback)
            return True

    # ---------------------------------------------------------------- in the thread

    def _run_loop(self, started: threading.Event) -> None:
        asyncio.run(self._main(started))

    async def _main(self, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = self._loop.create_future()
        started.set()
        await self._stopping
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._at_end()

    def _set_stopping(self) -> None:
        assert self._stopping is not None
        self._stopping.set_result(None)

    def _start(self, coroutine: Coroutine[Any, Any, T], outcome: Future[T]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks[outcome] = task
        task.add_done_callback(partial(self._finish, outcome))

    def _cancel(self, coroutine: Coroutine[Any, Any, T], outcome: Future[T]) -> None:
        task = self._tasks.get(outcome)
        if task is not None:
            task.cancel()
        elif not outcome.done():  # interrupted before it was posted
            coroutine.close()
            outcome.set_exception(LoopStopped("it was cancelled before its start"))

    def _finish(self, outcome: Future[T], task: asyncio.Task[T]) -> None:
        del self._tasks[outcome]
        if task.cancelled():
            outcome.set_exception(LoopStopped("the loop was stopped"))
            return
        error = task.exception()
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(task.result())
