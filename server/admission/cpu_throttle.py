"""The rests of a thread whose work must not take a core from everybody's steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import TypeVar

T = TypeVar("T")

RESTS = 3.0  # times the processor time of a call


class CpuThrottle:
    """Calls of one thread, which rests before a call as its last one has deserved.

    A call that holds the interpreter lock should be over soon, so the thread must not stand behind others while it
    computes: whoever waits for the lock would wait for those others, too. So it computes at full speed and then rests,
    and has at most a quarter of a core, however many and however long the calls are. A thread whose calls mostly do
    without the lock may stand behind others and rest as well. Where calls may take seconds a rest has a limit, because
    the next one may be somebody else's. Whoever calls now and then meets no rest.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        processor_time: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], object] = time.sleep,
        *,
        longest: float = inf,
    ) -> None:
        """
        Args:
            clock: seconds.
            processor_time: seconds that the calling thread has computed.
            sleep: lets the calling thread sleep for some seconds; it may return early where the thread is to end.
            longest: seconds that a rest may take.
        """
        self._longest = longest
        self._clock, self._processor_time, self._sleep = clock, processor_time, sleep
        self._end = clock()  # of the last rest

    def call(self, function: Callable[[], T]) -> T:
        """The result of `function`, called when the rest is over. Raises what it raises."""
        left = self._end - self._clock()
        if left > 0:
            self._sleep(left)
        begin = self._processor_time()
        try:
            return function()
        finally:
            self._end = self._clock() + min(RESTS * (self._processor_time() - begin), self._longest)
