"""Thread pools for work that would hold up the asyncio loop: checking bodies, rendering templates, tokenising."""

import asyncio
import contextvars
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

from engine.interface.background import SHORT_SWITCHES
from engine.interface.cpu import num_cores
from server.admission.fair_pool import FairPool
from server.admission.keyring import caller

NUM_SHORT = 2  # threads; more would only take turns at the interpreter lock, and take them from the asyncio thread
# Threads of their own for calls that may take long, so that short calls need not wait for them. On two cores it is one,
# which is throttled: two that tokenise would slow the steps by a quarter despite their lower priority, because a step
# waits for each of its own threads.
NUM_LONG = 2 if num_cores() > 2 else 1
LONGEST_REST = 0.25  # seconds; a text that takes seconds is rare, and the next one may be another tenant's

P = ParamSpec("P")
T = TypeVar("T")


class Workers:
    """Three pools, for short calls, long calls and large bodies; each serves tenants round-robin.

    The threads for long calls have a lower priority than the engine's: a library that tokenises without the interpreter
    lock would otherwise take half of the cores from the engine's steps. The one thread for large bodies is throttled:
    checking a body takes milliseconds, so that a few clients could keep the short threads busy for good. It is one,
    because parsers hold the interpreter lock, and two would only take turns.
    """

    def __init__(self, *, rests: bool = True) -> None:
        """Args:
        rests: whether large bodies and long texts leave time to an engine in this process.
        """
        self._short = FairPool(NUM_SHORT, "worker")
        self._large = FairPool(1, "body_worker", rests=rests)
        self._long = FairPool(
            NUM_LONG, "long_worker", stands_back=True, rests=rests and NUM_LONG == 1, longest_rest=LONGEST_REST
        )

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of the call, which sees the caller's context variables. Raises what the call raises.

        A call that has begun goes on when its waiter is cancelled.
        """
        return await _run(self._short, partial(function, *args, **kwargs))

    async def run_large(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `run`, for a call that decodes and checks a large body of a client's."""
        return await _run(self._large, partial(function, *args, **kwargs))

    async def run_long(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `run`, for a call that may take seconds, or computes for long without the interpreter lock."""
        return await _run(self._long, partial(function, *args, **kwargs))

    def close(self) -> None:
        """Takes no more calls and drops those that wait; does not wait for those that run."""
        for pool in (self._short, self._large, self._long):
            pool.close()


async def _run(pool: FairPool, call: Callable[[], T]) -> T:
    here = partial(_run_here, contextvars.copy_context(), call)
    return await asyncio.wrap_future(pool.submit(caller(), here))


def _run_here(context: contextvars.Context, call: Callable[[], T]) -> T:
    with SHORT_SWITCHES:
        return context.run(call)
