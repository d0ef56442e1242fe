from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import pytest

from server.grammar.deep_stack_threads import DeepStackThreads

SECONDS = 5


def threads(number: int = 1) -> DeepStackThreads[int]:
    return DeepStackThreads(number, 16 << 20, "test")


def test_results_and_errors_come_back() -> None:
    pool = threads()
    assert pool.submit(lambda: 5).result(SECONDS) == 5
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 // 0).result(SECONDS)
    assert pool.submit(lambda: 6).result(SECONDS) == 6


def test_there_are_no_more_threads_than_allowed_and_none_when_idle() -> None:
    pool, gate, names = threads(2), threading.Event(), set()

    def work() -> int:
        names.add(threading.current_thread())
        gate.wait(SECONDS)
        return 1

    futures = [pool.submit(work) for _ in range(6)]
    gate.set()
    assert [future.result(SECONDS) for future in futures] == [1] * 6
    assert 1 <= len(names) <= 2
    for thread in names:
        thread.join(SECONDS)
        assert not thread.is_alive()
        assert thread.daemon
    assert pool.submit(lambda: 2).result(SECONDS) == 2


def test_work_that_has_not_begun_can_be_cancelled() -> None:
    pool, gate = threads(), threading.Event()
    first = pool.submit(lambda: gate.wait(SECONDS) and 1)
    second, third = pool.submit(lambda: 2), pool.submit(lambda: 3)
    assert second.cancel()
    gate.set()
    assert (first.result(SECONDS), third.result(SECONDS)) == (1, 3)
    with pytest.raises(CancelledError):
        second.result(0)


def test_other_threads_keep_their_stack_size() -> None:
    before = threading.stack_size()
    threads().submit(lambda: 1).result(SECONDS)
    assert threading.stack_size() == before
