"""A rate with a burst, and debts."""

from __future__ import annotations

import pytest

from server.admission.limits.token_bucket import TokenBucket


def test_it_refills_up_to_its_capacity_and_carries_debts() -> None:
    now = 0.0
    bucket = TokenBucket(2.0, 10, clock=lambda: now)
    assert (bucket.remaining, bucket.seconds_until(10)) == (10, 0)
    bucket.take(13)
    assert (bucket.remaining, bucket.seconds_until(1)) == (-3, 2.0)
    now = 2.0
    assert (bucket.remaining, bucket.seconds_until(1)) == (1, 0)
    bucket.take(-100)  # given back
    assert bucket.remaining == 10
    now = 1000.0
    assert bucket.remaining == 10
    assert bucket.seconds_until(12) == pytest.approx(1.0)
