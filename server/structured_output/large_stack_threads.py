"""A thread pool with large stacks, for native code that recurses deeply; it serves owners round-robin."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from engine.interface.background import stand_back
from server.admission.fair_queue import FairQueue

STACK_BYTES = 256 << 20  # four times what the longest chain of rules in a grammar of the largest size takes

T = TypeVar("T")

_stack_size_lock = threading.Lock()  # the stack size of new threads is a setting of the whole process


class LargeStackThreads(Generic[T]):
    """Runs submitted work in at most `num_threads` threads: that of one owner in order, the owners by turns.

    A thread ends when there is no work left, so this needs no `close`. The threads are daemons, so the
    process does not wait for them at its end.

    Args:
        stack_bytes: address space of each stack; memory is used only as the stack grows.
        nice: the threads' nice value; 0 leaves the priority as it is.
    """

    def __init__(self, num_threads: int, stack_bytes: int, name: str, *, nice: int = 0) -> None:
        self._num_threads = num_threads
        self._stack_bytes = stack_bytes
        self._name = name
        self._nice = nice
        self._lock = threading.Lock()
        self._waiting: FairQueue[tuple[Future[T], Callable[[], T]]] = FairQueue()
        self._num_running = 0

    def submit(self, work: Callable[[], T], owner: str = "") -> Future[T]:
        """Queues work; the `cancel` of the returned future succeeds until the work begins."""
        future: Future[T] = Future()
        with self._lock:
            self._waiting.put(owner, (future, work))
            if self._num_running < self._num_threads:
                self._start()
                self._num_running += 1
        return future

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        with _stack_size_lock:
            usual = threading.stack_size(self._stack_bytes)
            try:
                thread.start()
            finally:
                threading.stack_size(usual)

    def _run(self) -> None:
        if self._nice:
            stand_back(self._nice)
        while True:
            with self._lock:
                if not self._waiting:
                    self._num_running -= 1
                    return
                future, work = self._waiting.take()
            if future.set_running_or_notify_cancel():
                _settle(future, work)


def _settle(future: Future[T], work: Callable[[], T]) -> None:
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - it is raised again where the future is awaited
        future.set_exception(error)
    else:
        future.set_result(result)
