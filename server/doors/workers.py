"""The few threads in which bodies are checked, templates rendered and texts tokenised."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from engine.border.background import SHORT_SWITCHES

NUM_THREADS = 4  # more would only take turns at the interpreter lock, and take them from the asyncio thread
NUM_LONG = 2  # of them, those that calls of seconds may take together; the others stay free for short ones

P = ParamSpec("P")
T = TypeVar("T")


class Workers:
    """A pool of threads for work that would hold up the streams. What does not fit waits for its turn."""

    def __init__(self, num_threads: int = NUM_THREADS) -> None:
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="worker")
        self._long = asyncio.Semaphore(min(NUM_LONG, num_threads))

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of the call, which sees the caller's context variables. Raises what the call raises.

        A call that has begun goes on when its waiter is cancelled; one that still waits for a thread is dropped.
        """
        call = partial(_run, contextvars.copy_context(), partial(function, *args, **kwargs))
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    async def run_long(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `run`, for a call that may take seconds. It waits where enough of its kind run, so that these never take
        all threads.
        """
        loop = asyncio.get_running_loop()
        call = partial(_run, contextvars.copy_context(), partial(function, *args, **kwargs))

        def release(_: Future[T]) -> None:  # in the thread, because the call goes on when its waiter has left
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._long.release)

        await self._long.acquire()
        future = self._pool.submit(call)
        future.add_done_callback(release)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Takes no more calls and drops those that wait; does not wait for those that run."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _run(context: contextvars.Context, call: Callable[[], T]) -> T:
    with SHORT_SWITCHES:
        return context.run(call)
