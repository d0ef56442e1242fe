"""How often a line is logged."""

from __future__ import annotations

from engine.interface.log_interval import LogInterval


def test_one_line_passes_in_each_interval() -> None:
    now = 5.0
    interval = LogInterval(60.0, clock=lambda: now)
    assert [interval.is_due() for _ in range(3)] == [True, False, False]
    now += 59.9
    assert not interval.is_due()
    now += 0.1
    assert [interval.is_due() for _ in range(2)] == [True, False]
