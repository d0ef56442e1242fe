from __future__ import annotations

from benchmarks.several import split_gaps


def test_gaps_are_told_apart_by_the_moment_at_which_the_load_ended() -> None:
    during, after = split_gaps([[1.0, 2.0, 4.0], [3.5, 5.0, 5.5], []], 4.0)
    assert (during, after) == ([1.0, 2.0], [0.5])  # the gap from 3.5 to 5.0 is of both
