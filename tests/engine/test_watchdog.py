"""The watch on the engine thread, with a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from engine.interface.types import EngineError, EngineStalled
from engine.watchdog import Watchdog


@dataclass
class Loop:
    """What the watchdog reads of the engine's loop."""

    heartbeat: float = 0.0
    is_in_call: bool = False
    is_running: bool = True


class Clock:
    """Stands in for the asyncio loop: one timer, and the time of the test."""

    def __init__(self) -> None:
        self.now = 100.0
        self._timers: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, callback: Callable[..., None], *args: Any) -> Any:
        entry = (self.now + seconds, callback, args)
        self._timers.append(entry)

        class Handle:
            def cancel(handle) -> None:  # noqa: N805
                if entry in self._timers:
                    self._timers.remove(entry)

        return Handle()

    def pass_time(self, seconds: float, before_each: Callable[[], None] = lambda: None) -> None:
        """Moves the time on and runs what is due, each at its own time."""
        end = self.now + seconds
        while self._timers and self._timers[0][0] <= end:
            due, callback, args = self._timers.pop(0)
            self.now = max(self.now, due)
            before_each()
            callback(*args)
        self.now = end


@pytest.fixture
def watched():
    loop, clock, reports = Loop(), Clock(), []
    dog = Watchdog(loop, stall_timeout=10.0, on_stall=reports.append)
    dog.start(clock)  # type: ignore[arg-type]
    return loop, clock, reports, dog


def test_a_loop_that_turns_is_left_alone(watched):
    loop, clock, reports, _ = watched

    def turn():
        loop.heartbeat += 1.0

    clock.pass_time(1000.0, turn)
    assert reports == []


def test_a_loop_that_stands_is_reported_once(watched):
    _, clock, reports, _ = watched
    clock.pass_time(9.0)
    assert reports == []
    clock.pass_time(2.0)
    assert [type(error) for error in reports] == [EngineStalled]
    assert "10 s" in str(reports[0])
    clock.pass_time(100.0)
    assert len(reports) == 1


def test_a_call_of_the_operator_may_take_any_time(watched):
    loop, clock, reports, _ = watched
    loop.is_in_call = True
    clock.pass_time(1000.0)
    assert reports == []
    loop.is_in_call = False
    clock.pass_time(11.0)
    assert len(reports) == 1


def test_a_process_that_was_stopped_as_a_whole_has_not_hung(watched):
    loop, clock, reports, _ = watched
    clock.now += 3600.0  # no timer ran, and the engine thread did not run either
    clock.pass_time(0.0)
    loop.heartbeat += 1.0
    clock.pass_time(5.0)
    assert reports == []


def test_a_thread_that_is_gone_is_reported_at_the_next_look(watched):
    loop, clock, reports, _ = watched
    loop.is_running = False
    clock.pass_time(2.0)
    assert [type(error) for error in reports] == [EngineError]


def test_a_stopped_watchdog_says_nothing(watched):
    _, clock, reports, dog = watched
    dog.stop()
    clock.pass_time(1000.0)
    assert reports == []


async def test_on_a_real_loop():
    reports: list[EngineError] = []
    dog = Watchdog(Loop(), stall_timeout=0.1, on_stall=reports.append)
    dog.start(asyncio.get_running_loop())
    for _ in range(1200):
        if reports:
            break
        await asyncio.sleep(0.05)
    assert [type(error) for error in reports] == [EngineStalled]
