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
        self._num_users = 0  # operators who change the engine's state among them
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
        self._begin_to_wake()
        try:
            yield
        finally:
            self._num_users -= 1
            self._note_use()

    @contextmanager
    def operate(self) -> Iterator[None]:
        """While the context lasts, an operator changes the engine's state.

        Unless that fails, whether the engine sleeps is from then on the operator's affair.
        """
        self._num_users += 1  # a change may take longer than the quiet time
        try:
            yield
            self._is_ours = False
        finally:
            self._num_users -= 1
            self._note_use()

    def take_over(self) -> bool:
        """From now on somebody else puts the engine to sleep and wakes it.

        Returns:
            Whether it sleeps because nobody has used it, so that its next request would have woken it.
        """
        was_ours, self._is_ours = self._is_ours, False
        self._note_use()
        return was_ours

    def hand_back(self) -> None:
        """The engine sleeps as it did before it was taken over; requests that have come meanwhile wake it."""
        self._is_ours = True
        if self._num_users:
            self._begin_to_wake()

    def _note_use(self) -> None:
        """The quiet time begins anew."""
        self._used_at = asyncio.get_running_loop().time()

    @property
    def _quiet_seconds(self) -> float:
        return 0.0 if self._num_users else asyncio.get_running_loop().time() - self._used_at

    async def _watch(self) -> None:
        while True:
            quiet = self._quiet_seconds
            if quiet < self._seconds:
                await asyncio.sleep(self._seconds - quiet)
                continue
            if self._lifecycle.state is EngineState.RUNNING:
                await self._sleep()
            await asyncio.sleep(self._seconds)

    async def _sleep(self) -> None:
        try:
            await self._lifecycle.sleep(drop_weights=self._drop_weights, is_wanted=self._may_sleep)
            if self._is_ours:
                log.info("engine_asleep", quiet_seconds=self._seconds)
        except Exception as error:  # noqa: BLE001 - the engine is woken by the next request, or has failed as a whole
            log.error("engine_sleep_failed", reason=f"{type(error).__name__}: {error}")

    def _may_sleep(self) -> bool:
        """Whether nobody has come while the sleep waited for its turn. From now on a request wakes the engine again.

        A wake or an operator's change before it has ended by now, so that neither takes this for its own state.
        """
        self._is_ours = self._quiet_seconds >= self._seconds and self._lifecycle.state is EngineState.RUNNING
        return self._is_ours

    def _begin_to_wake(self) -> None:
        if self._is_ours and (self._waking is None or self._waking.done()):
            self._waking = asyncio.create_task(self._wake())

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
