"""A thread that rests between its calls, with clocks of the test's own."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.admission.cpu_throttle import PAUSE, CpuThrottle


class Thread:
    """Stands for a thread: what it computes and how long it sleeps moves the clock."""

    def __init__(self, longest: float = inf) -> None:
        self.now = self.computed = self.slept = 0.0
        self.rests = CpuThrottle(lambda: self.now, lambda: self.computed, self._sleep, longest=longest)

    def _sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds
        self.slept += seconds

    def compute(self, seconds: float) -> float:
        """Takes so much processor time, in twice the time; returns how long it rested before."""
        before = self.slept

        def work() -> float:
            self.now += 2 * seconds
            self.computed += seconds
            return self.slept - before

        return self.rests.call(work)


def test_a_call_that_follows_at_once_waits_for_a_rest() -> None:
    thread = Thread()
    assert thread.compute(0.01) == 0
    assert thread.compute(0.02) == pytest.approx(PAUSE * 0.01)
    assert thread.compute(0.0) == pytest.approx(PAUSE * 0.02)
    assert thread.compute(0.01) == 0


def test_who_comes_later_waits_for_what_is_left() -> None:
    thread = Thread()
    thread.compute(0.01)
    thread.now += 0.01
    assert thread.compute(0.01) == pytest.approx(PAUSE * 0.01 - 0.01)
    thread.now += 1
    assert thread.compute(0.01) == 0


def test_a_rest_takes_no_longer_than_it_may() -> None:
    thread = Thread(longest=0.25)
    thread.compute(5.0)
    assert thread.compute(0.01) == pytest.approx(0.25)
    assert thread.compute(0.01) == pytest.approx(PAUSE * 0.01)


def test_a_call_that_fails_has_earned_its_rest() -> None:
    thread = Thread()

    def fail() -> None:
        thread.computed += 0.01
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        thread.rests.call(fail)
    assert thread.compute(0.0) == pytest.approx(PAUSE * 0.01)


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0, 100)), max_size=50))
def test_no_more_than_a_quarter_of_the_time_is_computed(calls: list[tuple[float, float]]) -> None:
    thread = Thread()
    for seconds, pause in calls:
        thread.compute(seconds)
        thread.now += pause
    thread.compute(0.0)  # when the last rest is over
    assert thread.computed <= thread.now / (1 + PAUSE) * (1 + 1e-9)
