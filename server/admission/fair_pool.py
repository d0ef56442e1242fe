"""A thread pool that serves tenants round-robin."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf
from typing import Any, Generic, TypeVar

from engine.interface.background import stand_back
from server.admission.cpu_throttle import CpuThrottle
from server.admission.fair_queue import FairQueue

T = TypeVar("T")


class FairPool:
    """A pool of threads. However many calls one tenant has waiting, the next call of another waits for one of them at
    most, and for the pause behind it where the thread is throttled. The calls of one tenant run in their order.
    """

    def __init__(
        self, num_threads: int, name: str, *, stands_back: bool = False, rests: bool = False, longest_rest: float = inf
    ) -> None:
        """Starts threads of this name.

        Args:
            stands_back: whether the threads have a lower priority than the process's other threads.
            rests: whether the one thread is throttled by a `CpuThrottle`, for `longest_rest` seconds at most.
        """
        assert num_threads == 1 or not rests, "what rests is one thread"
        self._pool = ThreadPoolExecutor(
            num_threads, thread_name_prefix=name, initializer=stand_back if stands_back else None
        )
        self._lock = threading.Lock()  # protects the field below
        self._waiting: FairQueue[_Waiting[Any]] = FairQueue()
        self._is_ending = threading.Event()  # ends the throttle's pauses
        self._rests = CpuThrottle(sleep=self._is_ending.wait, longest=longest_rest) if rests else None

    def submit(self, owner: str, function: Callable[[], T]) -> Future[T]:
        """Queues a call of `function`, skipped if cancelled before; raises RuntimeError if the pool is closed."""
        waiting = _Waiting(function)
        with self._lock:
            self._pool.submit(self._serve)  # takes whatever is next when a thread is free, not this call in particular
            self._waiting.put(owner, waiting)
        return waiting.future

    def finish(self, last: Callable[[], T]) -> Future[T]:
        """Takes no more calls; the one thread calls `last` behind all that wait, without further pauses."""
        self._is_ending.set()
        called = self._pool.submit(last)  # behind a task of the pool for each call that waits
        self._pool.shutdown(wait=False)
        return called

    def close(self) -> None:
        """Takes no more calls and drops those that wait; does not wait for those that run."""
        self._is_ending.set()
        with self._lock:
            self._pool.shutdown(wait=False, cancel_futures=True)
            while self._waiting:
                self._waiting.take().future.cancel()

    def _serve(self) -> None:
        if self._rests is None:
            self._serve_next()
        else:
            self._rests.call(self._serve_next)

    def _serve_next(self) -> None:
        """Calls the next function that is not cancelled, if there is one."""
        while True:
            with self._lock:
                if not self._waiting:
                    return
                waiting = self._waiting.take()
            if waiting.future.set_running_or_notify_cancel():
                waiting.call()
                del waiting  # the future may keep an error, whose frames lead here
                return


class _Waiting(Generic[T]):
    """A queued call."""

    def __init__(self, function: Callable[[], T]) -> None:
        self.future: Future[T] = Future()
        self._function = held = [function]
        # What it holds is often a large body, which a call that was cancelled must not keep until its turn.
        self.future.add_done_callback(lambda _: held.clear())

    def call(self) -> None:
        try:
            result = self._function[0]()
        except BaseException as error:  # noqa: BLE001 - it is raised where the future is awaited
            self.future.set_exception(error)
            del self  # an error keeps the variables of this call and of its callers, and the future keeps the error
        else:
            self.future.set_result(result)
