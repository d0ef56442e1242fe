"""The few threads in which bodies are checked, templates rendered and texts tokenised."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from engine.border.background import SHORT_SWITCHES, stand_back
from server.doors.rests import Rests

NUM_SHORT = 2  # threads; more would only take turns at the interpreter lock, and take them from the asyncio thread
NUM_LONG = 2  # threads of their own for calls that may take long, so that short calls need not wait for them

P = ParamSpec("P")
T = TypeVar("T")


class Workers:
    """Three pools of threads for work that would hold up the streams. What does not fit waits for its turn.

    The threads for long calls stand behind the engine's: a library that tokenises a text without the interpreter lock
    would otherwise take half of the cores from the steps that everybody's streams wait for. The one thread for large
    bodies rests between them: checking them takes milliseconds each, so that a few clients with nothing else to do
    would keep the short threads busy for good. It is one, because parsers hold the interpreter lock, and two would only
    take turns; and it does not stand behind, because the engine's thread needs that lock in each step.
    """

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(NUM_SHORT, thread_name_prefix="worker")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="body_worker")
        self._rests = Rests()  # of that one thread
        self._long = ThreadPoolExecutor(NUM_LONG, thread_name_prefix="long_worker", initializer=stand_back)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of the call, which sees the caller's context variables. Raises what the call raises.

        A call that has begun goes on when its waiter is cancelled; one that still waits for a thread is dropped.
        """
        return await _run(self._short, partial(function, *args, **kwargs))

    async def run_large(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `run`, for a call that decodes, checks or encodes a large body of a client's."""
        return await _run(self._large, partial(function, *args, **kwargs), self._rests.call)

    async def run_long(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `run`, for a call that may take seconds, or computes for long without the interpreter lock."""
        return await _run(self._long, partial(function, *args, **kwargs))

    def close(self) -> None:
        """Takes no more calls and drops those that wait; does not wait for those that run."""
        for pool in (self._short, self._large, self._long):
            pool.shutdown(wait=False, cancel_futures=True)


async def _run(
    pool: ThreadPoolExecutor, call: Callable[[], T], when: Callable[[Callable[[], T]], T] = lambda call: call()
) -> T:
    """Runs a call in a thread of the pool, where `when` calls it."""
    here = partial(_run_here, contextvars.copy_context(), call)
    return await asyncio.get_running_loop().run_in_executor(pool, when, here)


def _run_here(context: contextvars.Context, call: Callable[[], T]) -> T:
    with SHORT_SWITCHES:
        return context.run(call)
