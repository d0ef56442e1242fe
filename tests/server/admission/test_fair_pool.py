"""A pool of threads whose callers take turns. A thread is held by an event, never by a time."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from functools import partial

import pytest

from server.admission.cpu_throttle import CpuThrottle
from server.admission.fair_pool import FairPool
from tests.patience import PATIENCE_S


class HeldPool:
    """A pool of one thread that is held until it is let go, and the order of the calls that followed."""

    def __init__(self) -> None:
        self.pool = FairPool(1, "held")
        self.order: list[str] = []
        self._may_go, is_held = threading.Event(), threading.Event()
        self.holding = self.pool.submit("holder", lambda: (is_held.set(), self._may_go.wait(PATIENCE_S)))
        assert is_held.wait(PATIENCE_S)

    def put(self, *names: str) -> list[Future[None]]:
        """Calls whose owners are the first letters of their names."""
        return [self.pool.submit(name[0], partial(self.order.append, name)) for name in names]

    def let_go(self) -> None:
        self._may_go.set()


@pytest.fixture
def held() -> Iterator[HeldPool]:
    made = HeldPool()
    yield made
    made.let_go()
    made.pool.close()


def test_who_has_many_calls_waiting_holds_nobody_up(held: HeldPool) -> None:
    calls = held.put("a1", "a2", "a3", "b1", "a4", "c1", "b2")
    held.let_go()
    for call in calls:
        call.result(PATIENCE_S)
    assert held.order == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_a_call_that_nobody_waits_for_is_left_out_and_keeps_nothing(held: HeldPool) -> None:
    class Body:
        pass

    body = Body()
    gone = weakref.ref(body)
    call = held.pool.submit("a", partial(held.order.append, body))  # type: ignore[arg-type]
    del body
    left = held.put("a2", "b1")
    gc.disable()
    try:
        assert call.cancel()
        assert gone() is None  # before its turn has come
    finally:
        gc.enable()
    held.let_go()
    for each in left:
        each.result(PATIENCE_S)
    assert held.order == ["b1", "a2"]


class Told(Exception):
    """A result here, and an error there."""


def tell() -> Told:
    return Told()


def fail() -> None:
    raise Told


@pytest.mark.parametrize("function", [tell, fail])
def test_what_a_call_returns_or_raises_is_let_go_of_at_once(function: Callable[[], object]) -> None:
    pool = FairPool(1, "pool")
    gc.disable()
    try:
        call = pool.submit("a", function)
        told = weakref.ref(call.exception(PATIENCE_S) or call.result())
        assert type(told()) is Told
        del call
        pool.submit("a", int).result(PATIENCE_S)  # so that the thread has left the call before
        assert told() is None
    finally:
        gc.enable()
    pool.close()


def test_a_pool_that_is_closed_drops_what_waits(held: HeldPool) -> None:
    waiting = held.put("a1", "b1")
    held.pool.close()
    for call in waiting:
        with pytest.raises(CancelledError):
            call.result(0)
    with pytest.raises(RuntimeError):
        held.put("a2")
    held.let_go()
    held.holding.result(PATIENCE_S)
    assert held.order == []


def test_a_pool_that_is_finished_calls_all_that_wait_before_the_last(held: HeldPool) -> None:
    held.put("a1", "a2", "b1")[1].cancel()
    last = held.pool.finish(partial(held.order.append, "last"))
    with pytest.raises(RuntimeError):
        held.put("a3")
    held.let_go()
    last.result(PATIENCE_S)
    assert held.order == ["a1", "b1", "last"]


@pytest.mark.parametrize("end", ["close", "finish"])
def test_a_rest_ends_with_the_pool(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    resting = threading.Event()

    def rests(*, sleep: object, longest: float) -> CpuThrottle:
        def rest(seconds: float) -> None:
            resting.set()
            assert sleep(10 * PATIENCE_S)  # type: ignore[operator]

        return CpuThrottle(lambda: 0.0, iter(range(100)).__next__, rest)

    monkeypatch.setattr("server.admission.fair_pool.CpuThrottle", rests)
    pool, done = FairPool(1, "pool", rests=True), threading.Event()
    pool.submit("a", int).result(PATIENCE_S)
    call = pool.submit("a", done.set)
    assert resting.wait(PATIENCE_S)
    if end == "finish":
        pool.finish(int).result(PATIENCE_S)
        assert done.is_set()
    else:
        pool.close()
        with pytest.raises(CancelledError):
            call.result(PATIENCE_S)


async def test_a_task_waits_for_a_call_without_holding_up_the_loop(held: HeldPool) -> None:
    waiting = asyncio.wrap_future(held.put("a1")[0])
    await asyncio.sleep(0)
    assert not waiting.done()
    held.let_go()
    await asyncio.wait_for(waiting, PATIENCE_S)
