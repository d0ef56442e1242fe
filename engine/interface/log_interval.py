"""Bounds how often a line is logged that others can cause as often as they like."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf


class LogInterval:
    """Lets one line pass in so many seconds."""

    def __init__(self, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._again_at = -inf

    def is_due(self) -> bool:
        """Whether a line may be logged now; if so, the next one may not before the time is over."""
        now = self._clock()
        if now < self._again_at:
            return False
        self._again_at = now + self._seconds
        return True
