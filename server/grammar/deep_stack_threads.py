"""A few threads for work that recurses deeply in native code."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

STACK_BYTES = 256 << 20  # four times what the longest chain of rules in a grammar of the largest size takes

T = TypeVar("T")

_stack_size_lock = threading.Lock()  # the size is a setting of the whole process


class DeepStackThreads(Generic[T]):
    """Runs what is submitted, in its order, in at most `num_threads` threads.

    They end when there is nothing to do, so that nobody need close this. They are daemons: the
    process does not wait for work that nobody waits for.
    """

    def __init__(self, num_threads: int, stack_bytes: int, name: str) -> None:
        """
        Args:
            stack_bytes: address space; memory is taken as the stack is used.
        """
        self._num_threads = num_threads
        self._stack_bytes = stack_bytes
        self._name = name
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[T], Callable[[], T]]] = deque()
        self._num_running = 0

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Its `cancel` succeeds until the work begins."""
        future: Future[T] = Future()
        with self._lock:
            self._waiting.append((future, work))
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
        while True:
            with self._lock:
                if not self._waiting:
                    self._num_running -= 1
                    return
                future, work = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                _settle(future, work)


def _settle(future: Future[T], work: Callable[[], T]) -> None:
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - it is raised where the future is awaited
        future.set_exception(error)
    else:
        future.set_result(result)
