from __future__ import annotations

import pytest

from benchmarks.several import Gaps, split_gaps


def test_gaps_are_told_apart_by_the_moment_at_which_the_load_ended() -> None:
    during, after = split_gaps([[1.0, 2.0, 4.0], [3.5, 5.0, 5.5], []], 4.0)
    assert (during, after) == ([1.0, 2.0], [0.5])  # the gap from 3.5 to 5.0 is of both
    assert Gaps.of([0.001] * 99 + [0.101]).longest == pytest.approx(101)
    assert Gaps.of([]).num == 0
