"""Gives the engine's memory back after a quiet time, and wakes it for the next request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from engine.border.types import EngineState

if TYPE_CHECKING:  # it brings JAX, which takes a second to import
    from engine.client import EngineClient

log: structlog.stdlib.BoundLogger = structlog.get_logger("eagre")


class IdleSleep:
    """Puts an engine to sleep that nobody has used for `seconds`.

    Requests are not kept waiting here: they enter the queue of the sleeping engine, so that their streams can open
    and ping, and the engine computes them once it is awake. An engine that an operator has paused or put to sleep is
    left as it is.

    Args:
        drop_weights: whether the device gives back the memory of the weights too.
        on_failure: what ends the requests that wait for an engine that could not be woken.
    """

    def __init__(
        self, engine: EngineClient, seconds: float, *, drop_weights: bool, on_failure: Callable[[], None]
    ) -> None:
        self._lifecycle = engine.lifecycle
        self._seconds = seconds
        self._drop_weights = drop_weights
        self._on_failure = on_failure
        self._num_users = 0
        self._is_ours = False  # we have put the engine to sleep, or are about to
        self._used_at = 0.0
        self._watching: asyncio.Task[None] | None = None
        self._waking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to watch; called in the asyncio loop."""
        self._used_at = asyncio.get_running_loop().time()
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Watches no more. Idempotent."""
        tasks = [task for task in (self._watching, self._waking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @contextmanager
    def use(self) -> Iterator[None]:
        """Keeps the engine awake while the context lasts; one that sleeps begins to wake."""
        self._num_users += 1
        if self._is_ours and (self._waking is None or self._waking.done()):
            self._waking = asyncio.create_task(self._wake())
        try:
            yield
        finally:
            self._num_users -= 1
            self.note_use()

    def take_over(self) -> None:
        """An operator has changed the engine's state: whether it sleeps is from now on the operator's affair."""
        self._is_ours = False
        self.note_use()

    def note_use(self) -> None:
        """The quiet time begins anew."""
        self._used_at = asyncio.get_running_loop().time()

    async def _watch(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            quiet = 0.0 if self._num_users else clock() - self._used_at
            if quiet < self._seconds:
                await asyncio.sleep(self._seconds - quiet)
                continue
            if self._lifecycle.state is EngineState.RUNNING:
                await self._sleep()
            await asyncio.sleep(self._seconds)

    async def _sleep(self) -> None:
        self._is_ours = True  # before the wait: a request that comes meanwhile must wake the engine again
        try:
            await self._lifecycle.sleep(drop_weights=self._drop_weights)
            log.info("engine_asleep", quiet_seconds=self._seconds)
        except Exception as error:  # noqa: BLE001 - the engine is woken by the next request, or has failed as a whole
            log.error("engine_sleep_failed", reason=f"{type(error).__name__}: {error}")

    async def _wake(self) -> None:
        began = asyncio.get_running_loop().time()
        try:
            await self._lifecycle.wake()
        except Exception as error:  # noqa: BLE001 - the next request tries again
            log.error("engine_wake_failed", reason=f"{type(error).__name__}: {error}")
            self._on_failure()
            return
        self._is_ours = False
        log.info("engine_awake", seconds=round(asyncio.get_running_loop().time() - began, 3))
