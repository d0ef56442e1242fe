"""A watchdog over the engine thread, run by the asyncio thread, so that a hung engine ends its streams."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from engine.interface.types import EngineError, EngineStalled

_MOST_SECONDS_BETWEEN_LOOKS = 1.0
_LOOKS_PER_TIMEOUT = 8


class Watched(Protocol):
    """What the watchdog reads of the engine's loop, from another thread."""

    heartbeat: float  # changes with every turn of the loop
    is_in_call: bool  # an operator's call runs, which may take any time

    @property
    def is_running(self) -> bool:
        """Whether the thread is alive."""


class Watchdog:
    """Reports once if the engine's loop hangs for too long, or if its thread has ended."""

    def __init__(self, watched: Watched, stall_timeout: float, on_stall: Callable[[EngineError], None]) -> None:
        """Args:
        stall_timeout: seconds that one turn of the loop, which is one step, may take.
        on_stall: called in the asyncio thread, once at most.
        """
        self._watched = watched
        self._stall_timeout = stall_timeout
        self._on_stall = on_stall
        self._interval = min(_MOST_SECONDS_BETWEEN_LOOKS, stall_timeout / _LOOKS_PER_TIMEOUT)
        self._timer: asyncio.TimerHandle | None = None
        self._heartbeat = watched.heartbeat
        self._standing_for = 0.0  # seconds that the heartbeat has not changed while this thread looked
        self._looked_at = 0.0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Checks from now on, in the thread of `loop`."""
        self._heartbeat, self._looked_at = self._watched.heartbeat, loop.time()
        self._timer = loop.call_later(self._interval, self._look, loop)

    def stop(self) -> None:
        """Ends the checks."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        # A process that was stopped as a whole (SIGSTOP, a debugger, a suspended laptop) has not hung: only
        # the time in which this thread was running counts.
        now = loop.time()
        passed, self._looked_at = min(now - self._looked_at, 2 * self._interval), now
        if self._watched.is_in_call or self._watched.heartbeat != self._heartbeat:
            self._heartbeat, self._standing_for = self._watched.heartbeat, 0.0
        else:
            self._standing_for += passed
        self._timer = None
        if not self._watched.is_running:
            self._on_stall(EngineError("the engine thread has ended"))
        elif self._standing_for >= self._stall_timeout:
            self._on_stall(EngineStalled(f"one step has taken more than {self._stall_timeout:g} s (stall_timeout)"))
        else:
            self._timer = loop.call_later(self._interval, self._look, loop)
