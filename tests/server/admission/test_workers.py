"""The threads in which texts are worked on."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import threading

import pytest

from engine.interface.background import CALM_NICE, SHORT_SWITCH_INTERVAL
from server.admission.cpu_throttle import CpuThrottle
from server.admission.workers import NUM_LONG, Workers
from tests.patience import PATIENCE_S


async def test_long_calls_leave_threads_for_short_ones() -> None:
    workers, may_end, begun = Workers(), threading.Event(), threading.Semaphore(0)

    def take_long(result: int) -> int:
        begun.release()
        assert may_end.wait(PATIENCE_S)
        return result

    long = [asyncio.create_task(workers.run_long(take_long, number)) for number in range(4 * NUM_LONG)]
    await asyncio.to_thread(lambda: [begun.acquire() for _ in range(NUM_LONG)])
    assert await asyncio.wait_for(workers.run(len, "abc"), PATIENCE_S) == 3
    long.pop(0).cancel()  # its thread goes on, and keeps its place
    assert await asyncio.wait_for(workers.run(len, "ab"), PATIENCE_S) == 2
    assert not begun.acquire(blocking=False)
    may_end.set()
    assert await asyncio.gather(*long) == [*range(1, 4 * NUM_LONG)]
    workers.close()


async def test_an_error_of_a_long_call_is_its_callers() -> None:
    workers = Workers()
    for _ in range(NUM_LONG + 1):
        with pytest.raises(ZeroDivisionError):
            await workers.run_long(lambda: 1 // 0)
    workers.close()


async def test_those_who_wait_for_the_interpreter_lock_get_it_soon_while_a_call_runs() -> None:
    workers, usual = Workers(), sys.getswitchinterval()
    assert await workers.run(sys.getswitchinterval) == pytest.approx(SHORT_SWITCH_INTERVAL)
    assert await workers.run_long(sys.getswitchinterval) == pytest.approx(SHORT_SWITCH_INTERVAL)
    workers.close()
    assert sys.getswitchinterval() == usual


@pytest.mark.parametrize("is_long", [False, True])
async def test_the_interpreter_lock_changes_hands_as_usual_while_a_lone_thread_rests(
    is_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, computed, resting = sys.getswitchinterval(), itertools.count(), list[float]()

    def rests(*, sleep: object, longest: float) -> CpuThrottle:
        return CpuThrottle(lambda: 0.0, lambda: next(computed), lambda _: resting.append(sys.getswitchinterval()))

    monkeypatch.setattr("server.admission.fair_pool.CpuThrottle", rests)
    monkeypatch.setattr("server.admission.workers.NUM_LONG", 1)
    workers = Workers()
    run = workers.run_long if is_long else workers.run_large
    for _ in range(2):
        assert await run(sys.getswitchinterval) == pytest.approx(SHORT_SWITCH_INTERVAL)
    assert resting == [pytest.approx(usual)]
    workers.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of single threads")
async def test_long_calls_stand_behind_the_other_threads_and_large_bodies_do_not() -> None:
    def nice() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    workers, usual = Workers(), nice()
    assert await workers.run(nice) == usual
    assert await workers.run_long(nice) == max(usual, CALM_NICE)
    assert await workers.run_large(nice) == usual
    workers.close()


async def test_large_bodies_are_checked_one_after_another_and_keep_nobody_elses_thread() -> None:
    workers, may_end, begun = Workers(), threading.Event(), threading.Semaphore(0)

    def check(result: int) -> int:
        begun.release()
        assert may_end.wait(PATIENCE_S)
        return result

    large = [asyncio.create_task(workers.run_large(check, number)) for number in range(3)]
    await asyncio.to_thread(begun.acquire)
    assert await asyncio.wait_for(workers.run(len, "abc"), PATIENCE_S / 2) == 3
    assert await asyncio.wait_for(workers.run_long(len, "ab"), PATIENCE_S / 2) == 2
    assert not begun.acquire(blocking=False)
    may_end.set()
    assert await asyncio.gather(*large) == [0, 1, 2]
    workers.close()
