from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import CancelledError

import pytest

from server.structured_output.large_stack_threads import LargeStackThreads
from tests.patience import PATIENCE_S


def threads(number: int = 1) -> LargeStackThreads[int]:
    return LargeStackThreads(number, 16 << 20, "test")


def test_results_and_errors_come_back() -> None:
    pool = threads()
    assert pool.submit(lambda: 5).result(PATIENCE_S) == 5
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 // 0).result(PATIENCE_S)
    assert pool.submit(lambda: 6).result(PATIENCE_S) == 6


def test_there_are_no_more_threads_than_allowed_and_none_when_idle() -> None:
    pool, gate, names = threads(2), threading.Event(), set()

    def work() -> int:
        names.add(threading.current_thread())
        gate.wait(PATIENCE_S)
        return 1

    futures = [pool.submit(work) for _ in range(6)]
    gate.set()
    assert [future.result(PATIENCE_S) for future in futures] == [1] * 6
    assert 1 <= len(names) <= 2
    for thread in names:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert thread.daemon
    assert pool.submit(lambda: 2).result(PATIENCE_S) == 2


def test_work_that_has_not_begun_can_be_cancelled() -> None:
    pool, gate = threads(), threading.Event()
    first = pool.submit(lambda: gate.wait(PATIENCE_S) and 1)
    second, third = pool.submit(lambda: 2), pool.submit(lambda: 3)
    assert second.cancel()
    gate.set()
    assert (first.result(PATIENCE_S), third.result(PATIENCE_S)) == (1, 3)
    with pytest.raises(CancelledError):
        second.result(0)


def test_other_threads_keep_their_stack_size() -> None:
    before = threading.stack_size()
    threads().submit(lambda: 1).result(PATIENCE_S)
    assert threading.stack_size() == before


def test_owners_are_served_by_turns() -> None:
    pool, gate, order = threads(), threading.Event(), []
    pool.submit(lambda: gate.wait(PATIENCE_S) and 1, "many")

    def work(name: str) -> int:
        order.append(name)
        return 1

    futures = [pool.submit(lambda name=f"many{index}": work(name), "many") for index in range(3)]  # type: ignore[misc]
    futures.append(pool.submit(lambda: work("one"), "one"))
    gate.set()
    assert [future.result(PATIENCE_S) for future in futures] == [1] * 4
    assert order.index("one") <= 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of single threads")
def test_its_threads_have_the_nice_value_and_no_others() -> None:
    def nice() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    usual = nice()
    assert LargeStackThreads[int](1, 16 << 20, "test", nice=usual + 3).submit(nice).result(PATIENCE_S) == usual + 3
    assert nice() == usual
