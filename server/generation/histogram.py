"""A histogram for one thread, cheap enough to observe every token."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily


class Histogram:
    """Counts in buckets, for one thread.

    The histogram of prometheus_client takes a lock and walks its buckets at every observation. That is
    dear where every token of every stream is an observation, and the asyncio loop needs no lock.
    """

    def __init__(self, name: str, documentation: str, bounds: Sequence[float]) -> None:
        if sorted(set(bounds)) != list(bounds):
            raise ValueError(f"the bounds of {name} are {list(bounds)}; they must ascend")
        self.name = name
        self.documentation = documentation
        self._bounds = tuple(bounds)  # upper and inclusive
        self._counts = [0] * (len(bounds) + 1)  # the last counts what is above every bound
        self._sum = 0.0

    def observe(self, value: float, weight: int = 1) -> None:
        """Counts `value` as `weight` observations."""
        self._counts[bisect_left(self._bounds, value)] += weight
        self._sum += value * weight

    @property
    def count(self) -> int:
        return sum(self._counts)

    def collect(self, model: str) -> HistogramMetricFamily:
        """The histogram as Prometheus reads it: cumulative counts by upper bound, with the label `model`."""
        bounds = [*(str(bound) for bound in self._bounds), "+Inf"]
        buckets = list(zip(bounds, map(float, accumulate(self._counts)), strict=True))
        family = HistogramMetricFamily(self.name, self.documentation, labels=["model"])
        family.add_metric([model], buckets, sum_value=self._sum)
        return family
