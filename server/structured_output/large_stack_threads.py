"""A thread pool with large stacks, for native code that recurses deeply."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

STACK_BYTES = 256 << 20  # four times what the longest chain of rules in a grammar of the largest size takes

T = TypeVar("T")

_stack_size_lock = threading.Lock()  # the stack size of new threads is a setting of the whole process


class LargeStackThreads(Generic[T]):
    """Runs submitted work in order, in at most `num_threads` threads.

    A thread ends when there is no work left, so this needs no `close`. The threads are daemons, so the
    process does not wait for them at its end.

    Args:
        stack_bytes: address space of each stack; memory is used only as the stack grows.
    """

    def __init__(self, num_threads: int, stack_bytes: int, name: str) -> None:
        self._num_threads = num_threads
        self._stack_bytes = stack_bytes
        self._name = name
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[T], Callable[[], T]]] = deque()
        self._num_running = 0

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queues work; the `cancel` of the returned future succeeds until the work begins."""
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
    except BaseException as error:  # noqa: BLE001 - it is raised again where the future is awaited
        future.set_exception(error)
    else:
        future.set_result(result)
