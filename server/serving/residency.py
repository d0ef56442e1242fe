"""Loads models on demand, and puts the least recently used ones to sleep where memory has room for only some."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from engine.interface.errors import ModelError
from engine.interface.types import EngineBusy, EngineState
from server.protocol.errors import SERVER_ERROR, ApiError
from server.serving.served_model import ModelState, ServedModel
from server.startup.logs import log

# A model that somebody uses stays in memory for at least this time, and at least for this multiple of the time that it
# took to come: where more models are in use than there is room for, most of the time goes to answers and not to loads.
LEAST_STAY_S = 1.0
LEAST_STAY_IN_LOADS = 2.0
RETRY_S = 1.0  # before a model is tried again that could not be put to sleep

Bring: TypeAlias = Callable[[ServedModel], Awaitable[None]]


class _Place:
    """The residency state of one model: its users, its last use, and who waits for it."""

    def __init__(self) -> None:
        self.num_users = 0
        self.used_at = 0.0  # when the last user left
        self.may_leave_at = 0.0  # however many users it has
        self.arrival: asyncio.Future[ApiError | None] | None = None  # of those who wait for it


class Residency:
    """Brings models into memory, one after the other in the order of demand.

    Without room, the model that was left the longest ago is put to sleep. If all are in use, the one that is in memory
    the longest begins no new requests, and sleeps once those that have begun have ended; its new requests wait for it
    in their turn. So none is cut off, and none waits for ever.
    """

    def __init__(self, models: Sequence[ServedModel], limit: int) -> None:
        """Args:
        limit: how many models may be in memory.
        """
        self._models = models
        self.limit = limit
        self._places = {model: _Place() for model in models}
        self._wanted: dict[ServedModel, bool] = {}  # in order; whether it is wanted even where nobody uses it
        self._changed = asyncio.Event()
        self._bring: Bring | None = None
        self._running: asyncio.Task[None] | None = None

    def add(self, model: ServedModel) -> None:
        """Takes one more model, which has to share the room with the others."""
        self._models = (*self._models, model)
        self._places[model] = _Place()

    def start(self, bring: Bring) -> None:
        """Begins to bring models by `bring`, as many at once as there is room for, in their order."""
        self._bring = bring
        for model in self._models[: self.limit]:
            self._want(model, always=True)
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Brings no more. Idempotent."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    @contextmanager
    def use(self, model: ServedModel) -> Iterator[None]:
        """Keeps the model in memory while the context lasts, and asks for it if it is not there."""
        place = self._places[model]
        place.num_users += 1
        self.ask_for(model)
        try:
            yield
        finally:
            place.num_users -= 1
            place.used_at = _now()
            self._changed.set()

    def is_beside_others(self, model: ServedModel) -> bool:
        """Whether another model runs, with its weights in memory."""
        return any(other.state is ModelState.READY for other in self._models if other is not model)

    def ask_for(self, model: ServedModel) -> None:
        """Queues the load of a model in use, unless it is in memory."""
        if not model.is_in_memory:
            self._want(model)

    async def unload(self, model: ServedModel) -> None:
        """Takes a model that nobody uses out of memory; the next request for it brings it back.

        Raises:
            ApiError: 409, it is in use, or its weights cannot be read again.
        """
        place, idle_sleep = self._places[model], model.idle_sleep
        is_there = model.is_open and model.is_in_memory
        if not is_there:
            return
        if idle_sleep is not None:
            idle_sleep.take_over()  # it is woken from here
        try:
            await model.engine.lifecycle.sleep(forget_weights=True, is_wanted=lambda: not place.num_users)
        except (EngineBusy, ModelError) as error:
            raise ApiError(str(error), status=409, code="engine_busy") from error
        finally:
            if place.num_users:
                self.ask_for(model)  # a request has come meanwhile
            if model.is_in_memory and idle_sleep is not None:
                idle_sleep.hand_back()
        if model.is_in_memory:
            raise ApiError(f"the model {model.model_name} is in use", status=409, code="engine_busy")

    async def arrival(self, model: ServedModel) -> None:
        """Waits until the model, which the caller holds by `use`, is in memory; raises ApiError."""
        if model.is_in_memory:
            return
        if model not in self._wanted and model.load_error is not None:
            raise _cannot_load(model, model.load_error)
        place = self._places[model]
        if place.arrival is None:
            place.arrival = asyncio.get_running_loop().create_future()
        error = await asyncio.shield(place.arrival)
        if error is not None:
            raise error

    def _want(self, model: ServedModel, *, always: bool = False) -> None:
        self._wanted[model] = always or self._wanted.get(model, False)
        self._changed.set()

    def _is_wanted(self, model: ServedModel) -> bool:
        return self._wanted.get(model, False) or self._places[model].num_users > 0

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            model = next((model for model in self._wanted if self._is_wanted(model)), None)
            if model is None:
                self._wanted.clear()
                await self._changed.wait()
            elif model.is_in_memory:
                self._tell(model, None)
            elif await self._make_room_for(model):
                await self._bring_in(model)

    async def _bring_in(self, model: ServedModel) -> None:
        """Loads or wakes the model. Never raises; an error goes to those who wait for this model."""
        began, error = _now(), None
        model.loading_stage, model.load_error = "starting", None
        try:
            if not model.is_open:
                assert self._bring is not None
                await self._bring(model)
            elif not model.is_in_memory:
                await model.engine.lifecycle.wake(is_beside_others=self.is_beside_others(model))
        except Exception as failure:  # noqa: BLE001 - whatever is wrong with one model must not end the others
            is_foreseen = isinstance(failure, OSError | ValueError | RuntimeError | MemoryError)
            if not is_foreseen or not self._ends_with(model):
                log.error("model_not_loaded", model=model.model_name, reason=str(failure), exc_info=not is_foreseen)
            reason = str(failure) or type(failure).__name__
            model.fail_to_load(reason)
            error = _cannot_load(model, reason)
        finally:
            model.loading_stage = None
        place, seconds = self._places[model], _now() - began
        if error is None:
            place.used_at = _now()
            place.may_leave_at = _now() + max(LEAST_STAY_S, LEAST_STAY_IN_LOADS * seconds)
            log.info("model_in_memory", model=model.model_name, seconds=round(seconds, 3))
        self._tell(model, error)

    def _ends_with(self, model: ServedModel) -> bool:
        """Whether the command ends, with the reason in a line of its own, because its only model cannot be loaded."""
        return len(self._models) == 1 and not model.is_open and model.settings.log_format == "console"

    def _tell(self, model: ServedModel, error: ApiError | None) -> None:
        """Removes a model from the load queue, and gives the outcome to those who wait for it."""
        del self._wanted[model]
        arrival, self._places[model].arrival = self._places[model].arrival, None
        if arrival is not None:
            arrival.set_result(error)

    async def _make_room_for(self, model: ServedModel) -> bool:
        """Puts other models to sleep until there is room; returns False if nobody wants the model any more."""
        while self._is_wanted(model):
            self._changed.clear()
            others = [other for other in self._models if other is not model and other.is_in_memory]
            if len(others) < self.limit:
                return True
            leaving = self._choose(others)
            if leaving is not None:
                await self._put_to_sleep(leaving, in_favour_of=model)
            else:
                places = (self._places[other] for other in others)
                next_at = min((place.may_leave_at for place in places if place.may_leave_at > _now()), default=None)
                await self._wait_for_change(RETRY_S if next_at is None else next_at - _now())
        return False

    def _choose(self, others: Sequence[ServedModel]) -> ServedModel | None:
        """Chooses the model to put to sleep; None if none may leave yet."""
        # One that an operator has paused keeps its requests where they are.
        free = [other for other in others if other.engine_state is not EngineState.PAUSED and not other.has_failed]
        unused = [other for other in free if not self._places[other].num_users]
        if unused:
            return min(unused, key=lambda other: self._places[other].used_at)
        used = [other for other in free if self._places[other].may_leave_at <= _now()]
        return min(used, key=lambda other: self._places[other].may_leave_at, default=None)

    async def _put_to_sleep(self, leaving: ServedModel, *, in_favour_of: ServedModel) -> None:
        """Drains a model and frees its weights and pages. Stops early if `in_favour_of` is no longer wanted."""
        lifecycle = leaving.engine.lifecycle
        idle_sleep = leaving.idle_sleep
        if idle_sleep is not None:
            idle_sleep.take_over()  # it is woken from here
        sleeping = asyncio.ensure_future(lifecycle.sleep(forget_weights=True, drain=True))
        has_failed = False
        try:
            while not sleeping.done() and self._is_wanted(in_favour_of):
                self._changed.clear()
                changing = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait((sleeping, changing), return_when=asyncio.FIRST_COMPLETED)
                changing.cancel()
            if not sleeping.done():
                sleeping.cancel()
                await asyncio.gather(sleeping, return_exceptions=True)
                await lifecycle.settle()
            elif sleeping.exception() is not None:
                log.error("model_stays", model=leaving.model_name, reason=str(sleeping.exception()))
                has_failed = True
            else:
                log.info("model_asleep", model=leaving.model_name, in_favour_of=in_favour_of.model_name)
        finally:
            sleeping.cancel()
        # Requests may have come for it meanwhile, which wait in its queue.
        if not leaving.is_in_memory:
            if self._places[leaving].num_users:
                self._want(leaving)
        elif idle_sleep is not None:
            idle_sleep.hand_back()  # it may sleep though the weights could not be given back
        if has_failed:
            await asyncio.sleep(RETRY_S)

    async def _wait_for_change(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _cannot_load(model: ServedModel, reason: str) -> ApiError:
    return ApiError(
        f"the model {model.model_name} cannot be loaded: {reason}",
        status=503,
        error_type=SERVER_ERROR,
        param="model",
        code="model_not_loaded",
    )
