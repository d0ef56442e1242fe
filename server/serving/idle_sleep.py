"""Puts an idle engine to sleep after a timeout, and wakes it for the next request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import structlog

from engine.interface.types import EngineState

if TYPE_CHECKING:  # it brings JAX, which takes a second to import
    from engine.client import EngineClient

log: structlog.stdlib.BoundLogger = structlog.get_logger("eagre")


class IdleSleep:
    """Puts an engine to sleep that was not used for `seconds`, or never if None.

    Requests enter the queue of the sleeping engine, so that their streams can open and ping, and are computed once it
    is awake; `on_failure` ends them where it could not be woken. An operator's pause or sleep is left as it is.
    `drop_weights` also frees the device's memory of the weights.
    """

    def __init__(
        self, engine: EngineClient, seconds: float | None, *, drop_weights: bool, on_failure: Callable[[], None]
    ) -> None:
        self._lifecycle = engine.lifecycle
        self._seconds = seconds
        self._drop_weights = drop_weights
        self._on_failure = on_failure
        self._num_users = 0
        self._num_operators = 0  # who change the engine's state at this moment
        self._is_ours = False  # we have put the engine to sleep, or are about to
        self._is_operators = False  # the last change was an operator's, who has left the engine asleep
        self._used_at = 0.0
        self._changed = asyncio.Event()  # another quiet time was set
        self._watching: asyncio.Task[None] | None = None
        self._waking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to watch; called in the asyncio loop."""
        self.set_seconds(self._seconds)

    def set_seconds(self, seconds: float | None) -> None:
        """Sets the quiet time after which the engine sleeps, and begins it again; None: it never sleeps."""
        self._seconds = seconds
        self._note_use()
        self._changed.set()
        if seconds is not None and self._watching is None:
            self._watching = asyncio.create_task(self._watch())

    @property
    def seconds_left(self) -> float | None:
        """The time until the engine sleeps if nobody uses it; None where it never sleeps."""
        return None if self._seconds is None else max(self._seconds - self._quiet_seconds, 0.0)

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
        try:
            self._begin_to_wake()
            yield
        finally:
            self._num_users -= 1
            self._note_use()

    @contextmanager
    def operate(self) -> Iterator[None]:
        """Suspends the idle sleep while an operator changes the engine's state, and from then on decides on it."""
        self._num_operators += 1  # a change may take longer than the quiet time
        try:
            yield
            self._is_ours, self._is_operators = False, self._lifecycle.state is EngineState.ASLEEP
        finally:
            self._num_operators -= 1
            self._note_use()

    def take_over(self) -> None:
        """Leaves it to the caller to put the engine to sleep and to wake it, until `hand_back`."""
        if self._lifecycle.state is not EngineState.ASLEEP:
            self._is_operators = False  # whoever took it over before has woken it
        self._is_ours = False
        self._note_use()

    def hand_back(self) -> None:
        """Ends what `take_over` began; requests wake the engine, unless an operator has put it to sleep."""
        if self._lifecycle.state is EngineState.ASLEEP and not self._is_operators:
            self._is_ours = True
            if self._num_users:
                self._begin_to_wake()

    def _note_use(self) -> None:
        """Restarts the idle timer."""
        self._used_at = asyncio.get_running_loop().time()

    @property
    def _quiet_seconds(self) -> float:
        if self._num_users or self._num_operators:
            return 0.0
        return asyncio.get_running_loop().time() - self._used_at

    async def _watch(self) -> None:
        while True:
            self._changed.clear()
            seconds = self._seconds
            if seconds is None:
                await self._changed.wait()
                continue
            quiet = self._quiet_seconds
            if quiet >= seconds and self._lifecycle.state is EngineState.RUNNING:
                await self._sleep(seconds)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), seconds - quiet if quiet < seconds else seconds)

    async def _sleep(self, seconds: float) -> None:
        try:
            await self._lifecycle.sleep(drop_weights=self._drop_weights, is_wanted=partial(self._claim_sleep, seconds))
            if self._is_ours:
                log.info("engine_asleep", quiet_seconds=seconds)
        except Exception as error:  # noqa: BLE001 - the engine is woken by the next request, or has failed as a whole
            log.error("engine_sleep_failed", reason=f"{type(error).__name__}: {error}")

    def _claim_sleep(self, seconds: float) -> bool:
        """Returns whether the engine is still idle and may sleep, so that the next request wakes it.

        Called under the lifecycle's lock, so that an earlier wake or operator's change has already set `_is_ours`.
        """
        if self._quiet_seconds < seconds or self._lifecycle.state is not EngineState.RUNNING:
            return False
        self._is_ours, self._is_operators = True, False
        return True

    def _begin_to_wake(self) -> None:
        if self._is_ours and (self._waking is None or self._waking.done()):
            self._waking = asyncio.create_task(self._wake())

    async def _wake(self) -> None:
        began = asyncio.get_running_loop().time()
        try:
            await self._lifecycle.wake(is_wanted=lambda: self._is_ours)
        except Exception as error:  # noqa: BLE001 - the next request tries again
            log.error("engine_wake_failed", reason=f"{type(error).__name__}: {error}")
            self._on_failure()
            return
        if self._is_ours:  # nobody has taken it over, and no operator has changed it, before its turn came
            self._is_ours = False
            log.info("engine_awake", seconds=round(asyncio.get_running_loop().time() - began, 3))
