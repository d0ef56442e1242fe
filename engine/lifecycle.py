"""The lifecycle of a running engine: pause, sleep, wake, and new weights.

Each change runs in the engine thread, while nothing is in flight. Requests may be submitted in any state and queue up.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from engine.adapters.adapter_weights import AdapterWeights
from engine.engine import Engine
from engine.interface.background import run_in_background
from engine.interface.errors import ModelError
from engine.interface.types import EngineBusy, EngineError, EngineState
from engine.loop import Call, EngineLoop
from engine.weights.layout import Params

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
        """Continues after a pause; raises EngineBusy if the engine is asleep, where `wake` is needed."""
        async with self._lock:
            await self._run(self._resume)

    async def sleep(
        self,
        *,
        drop_weights: bool = False,
        forget_weights: bool = False,
        drain: bool = False,
        is_wanted: Callable[[], bool] | None = None,
    ) -> None:
        """Frees the memory of the pages. Cached prefixes are lost, and running requests are recomputed after `wake`.

        Args:
            drop_weights: also moves the weights from the device to the host's memory.
            forget_weights: frees them altogether, also where the engine sleeps already; `wake` reads them from their
                file.
            drain: first waits until the requests that have begun have ended, while new ones wait.
            is_wanted: called after all earlier changes, which take time; where it returns False, nothing happens.

        Raises:
            EngineBusy: the engine is paused and cannot drain; or the weights shall leave the devices of several hosts.
            ModelError: the weights shall be forgotten, and the engine knows no file that has them.
        """
        if drop_weights or forget_weights:
            self._engine.refuse_over_hosts("a sleep that takes the weights from the devices")
        if forget_weights and self._engine.model_path is None:
            raise ModelError("the engine was not loaded from a file, so that its weights cannot be read again")
        async with self._lock:
            if is_wanted is not None and not is_wanted():
                return
            if drain and self.state is not EngineState.ASLEEP:
                await self._run_drained(partial(self._sleep_if_drained, drop_weights, forget_weights))
            else:
                await self._run(partial(self._sleep, drop_weights, forget_weights))

    async def wake(self, *, is_beside_others: bool = False, is_wanted: Callable[[], bool] | None = None) -> None:
        """Allocates the memory again and continues; does nothing if the engine is not asleep.

        `is_beside_others` says that other engines of the process run, for which a core is left free. Raises ModelError
        where forgotten weights can no longer be read.
        """
        async with self._lock:
            if is_wanted is not None and not is_wanted():
                return
            params = None
            if self.state is EngineState.ASLEEP and not self._engine.has_weights:
                params = await run_in_background(
                    self._engine.read_weights, name="eagre-wake", is_calm=True, is_narrow=is_beside_others
                )
            await self._run(partial(self._wake, params))

    async def check_weights(self) -> None:
        """Raises ModelError where `wake` would read forgotten weights, and the headers of their files say that it
        cannot.
        """
        if not self._engine.has_weights:
            await run_in_background(self._open_weights, name="eagre-check", is_calm=True)

    async def reset_prefix_cache(self) -> bool:
        """Forgets every cached prefix; refuses and returns False while any request holds a page."""
        return await self._run(self._engine.reset_prefix_cache)

    async def update_weights(self, path: Path, *, drain: bool = False, is_beside_others: bool = False) -> None:
        """Replaces the weights by those of another file with the same architecture and sizes.

        Args:
            drain: whether to wait until the requests that have begun have ended, while new ones wait.
            is_beside_others: whether other engines of the process run, for which a core is left free.

        Raises:
            EngineBusy: requests have begun and `drain` is not set, the engine is asleep or paused, or has several
                hosts.
            ModelError: the file cannot be served in place of the loaded one.
        """
        self._engine.refuse_over_hosts("a change of the weights")
        async with self._lock:
            if self.state is EngineState.ASLEEP:
                raise EngineBusy("the engine is asleep; wake it before its weights are replaced")
            if not drain:
                self._refuse_while_busy()
            read = partial(self._engine.read_weights, path)
            is_narrow = is_beside_others or self.state is EngineState.RUNNING
            params = await run_in_background(read, name="eagre-read-weights", is_calm=True, is_narrow=is_narrow)
            replace = partial(self._replace, params, path, may_refuse=not drain)
            await (self._run_drained(replace) if drain else self._run(replace))

    async def load_adapter(self, slot: int, weights: AdapterWeights) -> None:
        """Puts an adapter into a slot; raises as `update_weights` where the engine has ended."""
        await self._run(partial(self._engine.load_adapter, slot, weights))

    async def settle(self) -> None:
        """Returns after all earlier changes, also those of callers that were cancelled."""
        await self._run(lambda: None)

    @property
    def has_weights(self) -> bool:
        """Whether the weights are in memory, of the device or of the host."""
        return self._engine.has_weights

    def close(self, error: str) -> None:
        """Fails all calls that wait for the engine thread, which has ended, and all later ones."""
        self._is_closed = True
        for future in self._pending:
            if not future.done():
                future.set_exception(EngineError(error))

    async def _run_drained(self, function: Callable[[], bool]) -> None:
        """Runs `function`, which returns False too late, once no request has begun; raises EngineBusy while paused."""
        scheduler = self._engine.scheduler
        scheduler.is_admitting = False
        try:
            is_done = False
            while not is_done:
                await self._wait_for_begun()
                # A request may begin between the end of the wait and the call; then the wait is repeated.
                is_done = await self._run(function)
        finally:
            scheduler.is_admitting = True
            self._engine_loop.post(Call(_wake_up))

    async def _wait_for_begun(self) -> None:
        """Waits until the requests that have begun have ended; raises as `_run_drained`."""
        while self._engine.scheduler.num_begun:
            if not self._engine_loop.is_running:
                raise EngineError("the engine is not running")
            if self.state is EngineState.PAUSED:
                raise EngineBusy("the engine is paused, so its requests cannot end; resume it first")
            await asyncio.sleep(_DRAIN_POLL_SECONDS)

    def _open_weights(self) -> None:
        self._engine.open_weights()

    def _refuse_while_busy(self) -> None:
        num_begun = self._engine.scheduler.num_begun
        if num_begun:
            raise EngineBusy(f"{num_begun} requests have begun; wait for them, or let the update drain them")

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

    def _sleep(self, drop_weights: bool, forget_weights: bool) -> None:
        if self.state is not EngineState.ASLEEP:
            self._engine_loop.is_paused = True
            self.state = EngineState.ASLEEP  # set first: if `sleep` fails half-way, `wake` undoes what was done
            self._engine.sleep(drop_weights=drop_weights and not forget_weights)
        if forget_weights:
            self._engine.forget_weights()

    def _sleep_if_drained(self, drop_weights: bool, forget_weights: bool) -> bool:
        if self._engine.scheduler.num_begun:
            return False
        self._sleep(drop_weights, forget_weights)
        return True

    def _replace(self, params: Params, path: Path, *, may_refuse: bool) -> bool:
        """Replaces the weights; returns False, and keeps them, if requests have begun."""
        if may_refuse:
            self._refuse_while_busy()
        elif self._engine.scheduler.num_begun:
            return False
        self._engine.replace_params(params)
        self._engine.model_path = path
        return True

    def _wake(self, params: Params | None) -> None:
        if self.state is EngineState.ASLEEP:
            self._engine.wake(params)
            self._engine_loop.is_paused = False
            self.state = EngineState.RUNNING

    # ---------------------------------------------------------------- called in the asyncio thread

    async def _run(self, function: Callable[[], T]) -> T:
        """Runs `function` in the engine thread while nothing is in flight; raises EngineError if that has ended."""
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
            raise errors.pop()  # a frame that held it would be in a cycle with it, and keep what `function` holds
        return results[0]


def _wake_up() -> None:
    """Does nothing: any message makes an idle loop look at its requests again."""


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
