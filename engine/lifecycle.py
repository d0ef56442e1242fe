"""The lifecycle of a running engine: pause, sleep, wake, and new weights, as an operator asks for them.

Each change runs in the engine thread, between steps, while nothing is in flight. Requests may be submitted
in any state; they queue up while the engine does not compute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from engine.border.errors import ModelError
from engine.border.types import EngineBusy, EngineError, EngineState
from engine.engine import Engine
from engine.loop import Call, EngineLoop
from engine.models.open_model import open_model
from engine.weights.layout import Params, Precision

T = TypeVar("T")

_DRAIN_POLL_SECONDS = 0.01


class Lifecycle:
    """Changes the state of an engine; used from the asyncio loop of the engine's client."""

    def __init__(self, engine: Engine, engine_loop: EngineLoop) -> None:
        self.state = EngineState.RUNNING
        self._engine = engine
        self._engine_loop = engine_loop
        self._pending: set[asyncio.Future[None]] = set()
        self._lock = asyncio.Lock()  # one change at a time
        self._is_closed = False

    # Each change of state is one call in the engine thread. So `state` stays true even if the caller is
    # cancelled while it waits.

    async def pause(self) -> None:
        """Stops computing; returns once nothing is in flight. Running requests keep their slots and pages."""
        async with self._lock:
            await self._run(self._pause)

    async def resume(self) -> None:
        """Goes on after a pause.

        Raises:
            EngineBusy: the engine is asleep; call `wake` instead.
        """
        async with self._lock:
            await self._run(self._resume)

    async def sleep(self, *, drop_weights: bool = False) -> None:
        """Frees the memory of the pages; with `drop_weights`, also the device memory of the weights.

        Running requests go back to the queue with the tokens they have, and are computed again
        after `wake`. Cached prefixes are lost.
        """
        async with self._lock:
            await self._run(partial(self._sleep, drop_weights))

    async def wake(self) -> None:
        """Allocates the memory again and goes on; does nothing if the engine is not asleep."""
        async with self._lock:
            await self._run(self._wake)

    async def reset_prefix_cache(self) -> bool:
        """Forgets every cached prefix; refuses and returns False while any request holds a page."""
        return await self._run(self._engine.pool.reset_prefix_cache)

    async def update_weights(self, path: Path, *, drain: bool = False) -> None:
        """Replaces the weights by those of another file with the same architecture and sizes.

        Args:
            drain: whether to wait until the requests that have begun have ended, while new ones wait.

        Raises:
            EngineBusy: requests have begun and `drain` is not set, or the engine is asleep or paused.
            ModelError: the file cannot be served in place of the loaded one.
        """
        async with self._lock:
            if self.state is EngineState.ASLEEP:
                raise EngineBusy("the engine is asleep; wake it before its weights are replaced")
            if not drain:
                self._refuse_while_busy()
            params = await asyncio.to_thread(self._read_weights, path)
            scheduler = self._engine.scheduler
            scheduler.is_admitting = False
            try:
                is_replaced = False
                while not is_replaced:
                    if drain:
                        await self._wait_for_begun()
                    # A request may begin between the end of the wait and the call; then the wait is repeated.
                    is_replaced = await self._run(partial(self._replace, params, may_refuse=not drain))
            finally:
                scheduler.is_admitting = True
                self._engine_loop.post(Call(_wake_up))

    def close(self, error: str) -> None:
        """Fails all calls that wait for the engine thread, which has ended, and all later ones."""
        self._is_closed = True
        for future in self._pending:
            if not future.done():
                future.set_exception(EngineError(error))

    async def _wait_for_begun(self) -> None:
        """Waits until the requests that have begun have ended.

        Raises:
            EngineBusy: the engine is paused, so they cannot end.
            EngineError: the engine is not running.
        """
        while self._engine.scheduler.num_begun:
            if not self._engine_loop.is_running:
                raise EngineError("the engine is not running")
            if self.state is EngineState.PAUSED:
                raise EngineBusy("the engine is paused, so its requests cannot end; resume it first")
            await asyncio.sleep(_DRAIN_POLL_SECONDS)

    def _refuse_while_busy(self) -> None:
        num_begun = self._engine.scheduler.num_begun
        if num_begun:
            raise EngineBusy(f"{num_begun} requests have begun; wait for them, or let the update drain them")

    def _read_weights(self, path: Path) -> Params:
        opened = open_model(path).for_context(self._engine.model_info.max_model_len)
        runner = self._engine.runner
        if opened.model != runner.model:
            raise ModelError(f"{path} is of another shape: {opened.config} in the place of {runner.model.config}")
        precision = Precision.of_engine(self._engine.config)
        params = opened.load(runner.bodies.weights, precision, lambda stage, done, total: None).params
        if not runner.accepts(params):
            raise ModelError(f"{path} holds its weights in other formats than the model that is loaded")
        return params

    # ---------------------------------------------------------------- called in the engine thread

    def _pause(self) -> None:
        if self.state is EngineState.RUNNING:
            self._engine_loop.is_paused = True
            self.state = EngineState.PAUSED

    def _resume(self) -> None:
        if self.state is EngineState.ASLEEP:
            raise EngineBusy("the engine is asleep; it must be woken, not resumed")
        self._engine_loop.is_paused = False
        self.state = EngineState.RUNNING

    def _sleep(self, drop_weights: bool) -> None:
        if self.state is not EngineState.ASLEEP:
            self._engine_loop.is_paused = True
            self.state = EngineState.ASLEEP  # set first: if `sleep` fails half-way, `wake` undoes what was done
            self._engine.sleep(drop_weights=drop_weights)

    def _replace(self, params: Params, *, may_refuse: bool) -> bool:
        """Replaces the weights; returns False, and keeps them, if requests have begun."""
        if may_refuse:
            self._refuse_while_busy()
        elif self._engine.scheduler.num_begun:
            return False
        self._engine.replace_params(params)
        return True

    def _wake(self) -> None:
        if self.state is EngineState.ASLEEP:
            self._engine.wake()
            self._engine_loop.is_paused = False
            self.state = EngineState.RUNNING

    # ---------------------------------------------------------------- called in the asyncio thread

    async def _run(self, function: Callable[[], T]) -> T:
        """Runs `function` in the engine thread while nothing is in flight.

        Raises:
            EngineError: the engine is not running, or ends before it runs the function.
        """
        if self._is_closed or not self._engine_loop.is_running:
            raise EngineError("the engine is not running")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        results: list[T] = []
        errors: list[Exception] = []

        def call() -> None:
            try:
                results.append(function())
            except (RuntimeError, ValueError, OSError, MemoryError) as error:
                errors.append(error)
            loop.call_soon_threadsafe(_set_done, done)

        self._pending.add(done)
        try:
            self._engine_loop.post(Call(call))
            await done
        finally:
            self._pending.discard(done)
        if errors:
            raise errors[0]
        return results[0]


def _wake_up() -> None:
    """Does nothing: any message makes an idle loop look at its requests again."""


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
