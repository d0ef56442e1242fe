from __future__ import annotations

import pytest

from server.telemetry.metrics import Histogram


def test_buckets_are_cumulative_and_bounds_inclusive() -> None:
    histogram = Histogram("h", "help", (1, 2.5))
    for value in (0.5, 1, 2, 99):
        histogram.observe(value)
    histogram.observe(2.5, weight=3)
    samples = {(sample.name, sample.labels.get("le")): sample.value for sample in histogram.collect("tide").samples}
    assert samples == {
        ("h_bucket", "1"): 2,
        ("h_bucket", "2.5"): 6,
        ("h_bucket", "+Inf"): 7,
        ("h_count", None): 7,
        ("h_sum", None): 0.5 + 1 + 2 + 99 + 7.5,
    }
    assert histogram.count == 7


def test_bounds_must_ascend() -> None:
    with pytest.raises(ValueError, match="must ascend"):
        Histogram("h", "help", (2, 1))
