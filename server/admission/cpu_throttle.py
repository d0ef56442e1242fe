"""A limit on the processor time of a thread, so that its work takes no core from the engine's steps."""

import time
from collections.abc import Callable
from math import inf
from typing import TypeVar

T = TypeVar("T")

PAUSE = 3.0  # times the processor time of a call


class CpuThrottle:
    """Sleeps before a call in proportion to the processor time of the call before, a quarter of a core at most.

    A call that holds the interpreter lock should be over soon, so a lower priority would not do. Where calls may take
    seconds a pause has a limit, because the next call may be another tenant's. Rare calls meet no pause.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        processor_time: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], object] = time.sleep,
        *,
        longest: float = inf,
    ) -> None:
        """Waits by `sleep`, up to `longest` seconds, which may return early where the thread is to end."""
        self._longest = longest
        self._clock, self._processor_time, self._sleep = clock, processor_time, sleep
        self._end = clock()  # of the last pause

    def call(self, function: Callable[[], T]) -> T:
        """The result of `function`, called when the pause is over. Raises what it raises."""
        left = self._end - self._clock()
        if left > 0:
            self._sleep(left)
        begin = self._processor_time()
        try:
            return function()
        finally:
            self._end = self._clock() + min(PAUSE * (self._processor_time() - begin), self._longest)
