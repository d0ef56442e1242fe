"""A token bucket: a rate with a burst."""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """Holds up to `capacity` units and refills at `rate` units a second.

    More may be taken than there is, because what an answer costs is known at its end. The debt is refilled first.
    """

    def __init__(self, rate: float, capacity: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self.capacity = capacity
        self._clock = clock
        self._held = capacity  # at `_at`
        self._at = clock()

    @property
    def remaining(self) -> float:
        """What may be taken now; negative while there is a debt."""
        now = self._clock()
        self._held = min(self.capacity, self._held + (now - self._at) * self.rate)
        self._at = now
        return self._held

    def take(self, amount: float) -> None:
        """Takes `amount`, whether it is there or not; a negative amount is given back."""
        self._held = min(self.capacity, self.remaining - amount)

    def seconds_until(self, amount: float) -> float:
        """How long it takes until `amount` can be taken; 0 if it can be now."""
        return max(0.0, (amount - self.remaining) / self.rate)
