"""Runs a function in a background thread of the asyncio loop, optionally at lower priority."""

import asyncio
import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# The nice value of a thread that must not disturb the others. Linux gives such a thread a third of the time that a
# thread of value 0 gets, where both want the same core. A much smaller share would do harm: a thread that holds the
# interpreter lock and gets no time keeps all others waiting for it, and beside busy processes a load would not end.
CALM_NICE = 5
SHORT_SWITCH_INTERVAL = 0.0005  # seconds, of the interpreter lock while SHORT_SWITCHES are entered

_here = threading.local()  # `is_narrow` of a thread that `run_in_background` has started


def run_in_background(
    function: Callable[[], T], *, name: str, is_calm: bool = False, is_narrow: bool = False
) -> asyncio.Future[T]:
    """Like `asyncio.to_thread`, but the process may end before the thread does.

    Args:
        is_calm: whether the thread and those that it starts run at a lower priority (on Linux alone).
        is_narrow: whether the function should use one core only, which it reads from `is_narrow_here`.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    threading.Thread(target=_run, args=(function, loop, future, is_calm, is_narrow), name=name, daemon=True).start()
    return future


def _run(
    function: Callable[[], T],
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[T],
    is_calm: bool,
    is_narrow: bool,
) -> None:
    _here.is_narrow = is_narrow
    if is_calm:
        stand_back()
    result: T | None = None
    error: BaseException | None = None
    try:
        with SHORT_SWITCHES if is_calm else contextlib.nullcontext():
            result = function()
    except BaseException as raised:  # noqa: BLE001 - it is raised again where the future is awaited
        error = raised
        _forget_locals(error)
    # An error holds the frames that it has come through, and so the variables of this call. If `function` were left in
    # them, all that it is bound to would stay as long as the error; and if the future were, which holds the error, both
    # would stay until the garbage collector came.
    del function
    if not loop.is_closed():
        with contextlib.suppress(RuntimeError):  # the loop may close at this very moment
            loop.call_soon_threadsafe(_settle, future, result, error)
    del future, result, error


def _settle(future: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)  # type: ignore[arg-type]  # None only where T allows it


def is_narrow_here() -> bool:
    """Whether the calling thread is one of `run_in_background` that should compute on one core alone."""
    return getattr(_here, "is_narrow", False)


def _forget_locals(error: BaseException) -> None:
    """Clears the local variables of the frames that an error has come through.

    An error is often part of a cycle until the garbage collector finds it, and would keep so long, or for ever, all
    weights of a model that could not be loaded.
    """
    todo: list[BaseException | None] = [error]
    seen: set[int] = set()
    while todo:
        one = todo.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            todo += one.__cause__, one.__context__
            if isinstance(one, BaseExceptionGroup):
                todo += one.exceptions


class _ShortSwitches:
    """Shortens the interpreter's switch interval while it is entered, so that waiting threads soon get its lock.

    An engine thread takes the lock several times in a step, and waits each time for a whole interval, five milliseconds
    by default, of every thread that computes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_inside = 0
        self._usual = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if self._num_inside == 0:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(SHORT_SWITCH_INTERVAL, self._usual))
            self._num_inside += 1

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self._num_inside -= 1
            if self._num_inside == 0:
                sys.setswitchinterval(self._usual)


SHORT_SWITCHES = _ShortSwitches()  # entered by threads that compute beside an engine


def stand_back(nice: int = CALM_NICE) -> None:
    """Lowers the priority of the calling thread for good. Threads that it starts inherit it."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            # To root the same call would raise a priority that is lower already, above that of the process's others.
            if os.getpriority(os.PRIO_PROCESS, thread) < nice:
                os.setpriority(os.PRIO_PROCESS, thread, nice)
