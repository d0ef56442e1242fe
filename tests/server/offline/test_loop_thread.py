"""A loop in a thread: results, errors, interruptions, the stop."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from server.offline.loop_thread import LoopStopped, LoopThread
from tests.patience import PATIENCE_S


class Watched:
    """A loop thread that tells what became of its coroutines."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.thread = LoopThread("watched", at_end=lambda: self.events.append("end"))

    async def sleep(self, seconds: float = PATIENCE_S) -> None:
        self.events.append("begin")
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.events.append("cancelled")
            raise


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.thread.stop()
    watched.thread.join()


async def give(value: object) -> object:
    await asyncio.sleep(0)
    if isinstance(value, Exception):
        raise value
    return value


def test_results_and_errors_reach_their_callers(watched: Watched) -> None:
    assert watched.thread.run(give(5)) == 5
    with pytest.raises(TimeoutError, match="its own"):
        watched.thread.run(give(TimeoutError("its own")), on_tick=lambda: None)
    with ThreadPoolExecutor(8) as workers:
        assert list(workers.map(lambda value: watched.thread.run(give(value)), range(100))) == list(range(100))


def test_an_exception_in_a_tick_cancels(watched: Watched) -> None:
    def tick() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watched.thread.run(watched.sleep(), on_tick=tick)
    assert watched.events == ["begin", "cancelled"]


def test_an_interrupt_before_the_coroutine_is_posted(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watched.thread, "_accept", interrupted)
    with pytest.raises(KeyboardInterrupt):
        watched.thread.run(watched.sleep())
    assert watched.events == []


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals of one thread are of POSIX alone")
def test_an_interrupt_that_another_thread_takes_is_seen(watched: Watched) -> None:
    def interrupt() -> None:
        while not watched.events:
            time.sleep(0.001)
        time.sleep(0.05)  # until the caller waits
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        watched.thread.run(watched.sleep())  # where the interrupt is overlooked the test fails, and does not hang
    thread.join()
    assert watched.events == ["begin", "cancelled"]


def test_stopping_cancels_and_then_refuses(watched: Watched) -> None:
    begun = threading.Event()

    async def sleep() -> None:
        begun.set()
        await watched.sleep()

    with ThreadPoolExecutor(1) as workers:
        running = workers.submit(watched.thread.run, sleep())
        assert begun.wait(PATIENCE_S)
        watched.thread.stop()
        with pytest.raises(LoopStopped):
            running.result(PATIENCE_S)
    watched.thread.stop()
    watched.thread.join()
    assert watched.events == ["begin", "cancelled", "end"]
    assert watched.thread.is_stopped
    with pytest.raises(LoopStopped):
        watched.thread.run(give(5))
    watched.thread.spawn(give(5))  # dropped without a word
