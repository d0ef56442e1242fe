"""Loads models on demand, and puts the least used ones to sleep where memory has room for only some."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

from engine.interface.errors import ModelError
from engine.interface.types import EngineBusy, EngineState, MachineMemory
from server.protocol.errors import SERVER_ERROR, ApiError, unavailable
from server.serving.eviction import Candidate, Uses
from server.serving.served_model import ModelState, ServedModel
from server.startup.logs import log
from server.startup.model_sizes import ModelBytes

# A model that somebody uses stays in memory for at least this time, and at least for this multiple of the time that it
# took to come: where more models are in use than there is room for, most of the time goes to answers and not to loads.
LEAST_STAY_S = 1.0
LEAST_STAY_IN_LOADS = 2.0
RETRY_S = 1.0  # before a model is tried again that could not be put to sleep
FOUND_S = 1.0  # in which a request that has found its model comes to use it, though the model has left the list since
NO_ROOM = "the models in memory leave no room for it, and nobody waits for it"

Bring: TypeAlias = Callable[[], Awaitable[None]]
Measure: TypeAlias = Callable[[], MachineMemory]


class PlannedLoad(NamedTuple):
    """The load of a model that was checked before others make room for it."""

    num_bytes: ModelBytes
    bring: Bring


class Loader(Protocol):
    """What loads models that were not loaded before."""

    async def known_bytes(self, model: ServedModel) -> ModelBytes:
        """What is known of the model's memory without its files."""

    async def plan(self, model: ServedModel) -> PlannedLoad:
        """Checks all that can be known of a model while others have the memory; raises what is wrong with it."""


class _Place:
    """The residency state of one model: its users, its last use, and who waits for it."""

    def __init__(self) -> None:
        self.num_users = 0
        self.bytes: ModelBytes | None = None  # None where they are not known yet
        self.left = asyncio.Event()  # set whenever the last user leaves
        self.is_leaving = False  # it is freed as soon as nobody uses it
        self.may_leave_at = 0.0  # however many users it has
        self.arrival: asyncio.Future[ApiError | None] | None = None  # of those who wait for it


class Residency:
    """Brings models into memory, one after the other in the order of demand.

    Without room, those models are put to sleep that are used the least, as many as must go. If all are in use, the one
    that is in memory the longest begins no new requests, and sleeps once those that have begun have ended; its new
    requests wait for it in their turn. So none is cut off, and none waits for ever. A pinned model never goes.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        models_max: int | None,
        max_bytes: int | None = None,
    ) -> None:
        """Args:
        models_max: how many models may be in memory; None: as many as there are now.
        max_bytes: of their weights and pages; None: what the machine has.
        """
        self._models = models
        self._uses = Uses[ServedModel]()
        self._measure: Measure | None = None
        self._machine_bytes: int | None = None  # of its memory; None where that is not known
        self._places = {model: _Place() for model in models}
        self._wanted: dict[ServedModel, bool] = {}  # in order; whether it is wanted even where nobody uses it
        self._changed = asyncio.Event()
        self._loader: Loader | None = None
        self._running: asyncio.Task[None] | None = None
        self.set_limits(models_max, max_bytes, len(models))

    def set_limits(self, models_max: int | None, max_bytes: int | None, num_models: int) -> None:
        """Sets what `__init__` was given; without a limit as many as `num_models` may be in memory."""
        self._models_max, self._max_bytes = models_max, max_bytes
        self.limit = models_max or num_models
        self._changed.set()

    def add(self, model: ServedModel) -> None:
        """Takes one more model, which has to share the room with the others."""
        self._models = (*self._models, model)
        self._places[model] = _Place()

    def start(self, loader: Loader, measure: Measure | None = None) -> None:
        """Begins to bring models with `loader`, as many at once as there is room for, pinned ones first.

        `measure` tells the memory of the machine, and blocks; without it, that is not looked at.
        """
        self._loader, self._measure = loader, measure
        self.load_first()
        self._running = asyncio.create_task(self._run())

    def load_first(self) -> None:
        """Brings in the first models that were never loaded, where no other one has to go for them."""
        for model in self.first_models:
            if not model.is_open:
                self._want(model, always=True)

    @property
    def first_models(self) -> Sequence[ServedModel]:
        """Those that are brought into memory without a request."""
        staying = [model for model in self._models if not self._places[model].is_leaving]
        return sorted(staying, key=lambda model: not model.is_pinned)[: self.limit]

    async def stop(self) -> None:
        """Brings no more. Idempotent."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    @contextmanager
    def use(self, model: ServedModel) -> Iterator[None]:
        """Keeps the model in memory while the context lasts, and asks for it if it is not there."""
        place = self._place_of(model)
        place.num_users += 1
        self._uses.count(model)
        self.ask_for(model)
        try:
            yield
        finally:
            place.num_users -= 1
            self._changed.set()
            if not place.num_users:
                place.left.set()

    async def leave(self, model: ServedModel) -> None:
        """Waits until nobody uses the model any more, which has no new users but those that have found it before."""
        place = self._place_of(model)
        place.is_leaving = True
        self._changed.set()
        await asyncio.sleep(FOUND_S)
        while place.num_users or model.loading_stage is not None:
            place.left.clear()
            await place.left.wait()

    def remove(self, model: ServedModel) -> None:
        """Knows the model no more, whose memory has been freed."""
        self._end_wait(model, _cannot_load(model, "it was replaced or removed"))
        self._models = tuple(other for other in self._models if other is not model)
        self._places.pop(model, None)
        self._uses.forget(model)
        self.load_first()
        self._changed.set()

    def _place_of(self, model: ServedModel) -> _Place:
        place = self._places.get(model)
        if place is None:
            raise unavailable(f"the model {model.model_name} was just replaced or removed; try again", "not_loaded")
        return place

    def num_before(self, model: ServedModel) -> int:
        """How many other models are brought into memory before this one."""
        wanted = [other for other in self._wanted if self._is_wanted(other)]
        return wanted.index(model) if model in wanted else 0

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
        place, idle_sleep = self._place_of(model), model.idle_sleep
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
        place = self._place_of(model)
        if model not in self._wanted and (model.load_error is not None or not place.num_users):
            raise _cannot_load(model, model.load_error or NO_ROOM)
        if place.arrival is None:
            place.arrival = asyncio.get_running_loop().create_future()
        error = await asyncio.shield(place.arrival)
        if error is not None:
            raise error

    def _want(self, model: ServedModel, *, always: bool = False) -> None:
        self._wanted[model] = always or self._wanted.get(model, False)
        self._changed.set()

    def _is_wanted(self, model: ServedModel) -> bool:
        place = self._places.get(model)
        if place is None:
            return False
        return place.num_users > 0 or (self._wanted.get(model, False) and not place.is_leaving)

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            model = next((model for model in self._wanted if self._is_wanted(model)), None)
            if model is None:
                self._wanted.clear()
                await self._changed.wait()
            elif model.is_in_memory:
                self._end_wait(model, None)
            else:
                await self._fetch(model)

    async def _fetch(self, model: ServedModel) -> None:
        """Brings one model. Nothing is kept of its plan, whose open files would keep what a new model has replaced."""
        bring = await self._checked(model)
        if bring is not None and await self._make_room_for(model):
            await self._bring(model, bring)

    async def _checked(self, model: ServedModel) -> Bring | None:
        """What loads or wakes the model, which nothing speaks against but perhaps the memory; None where it fails.

        No other model goes for one that turns out not to load. Never raises; an error goes to those who wait.
        """
        place, loader = self._places[model], self._loader
        assert loader is not None
        model.loading_stage, model.load_error = "starting", None
        try:
            if model.is_open:
                await model.engine.lifecycle.check_weights()
                return partial(self._wake, model)
            if place.bytes is None:
                place.bytes = await loader.known_bytes(model)
            if self._refuse_hopeless(model):
                return None
            place.bytes, bring = await loader.plan(model)
            return bring
        except Exception as failure:  # noqa: BLE001 - whatever is wrong with one model must not end the others
            self._fail(model, failure)
            return None
        finally:
            model.loading_stage = None
            place.left.set()  # nobody may want it any more

    async def _wake(self, model: ServedModel) -> None:
        if not model.is_in_memory:
            await model.engine.lifecycle.wake(is_beside_others=self.is_beside_others(model))

    async def _bring(self, model: ServedModel, bring: Bring) -> None:
        """Loads or wakes the model. Never raises; an error goes to those who wait for this model."""
        began = _now()
        model.loading_stage = "starting"
        try:
            await bring()
        except Exception as failure:  # noqa: BLE001 - as above
            self._fail(model, failure)
            return
        finally:
            model.loading_stage = None
        seconds = _now() - began
        if model in self._places:  # it may have been removed meanwhile
            self._places[model].may_leave_at = _now() + max(LEAST_STAY_S, LEAST_STAY_IN_LOADS * seconds)
        log.info("model_in_memory", model=model.model_name, seconds=round(seconds, 3))
        self._end_wait(model, None)

    def _fail(self, model: ServedModel, failure: Exception) -> None:
        """Ends the wait for a model that cannot be brought."""
        is_foreseen = isinstance(failure, OSError | ValueError | RuntimeError | MemoryError)
        if not is_foreseen or not self._ends_with(model):
            log.error("model_not_loaded", model=model.model_name, reason=str(failure), exc_info=not is_foreseen)
        self._give_up(model, str(failure) or type(failure).__name__)

    def _refuse_hopeless(self, model: ServedModel) -> bool:
        """Ends the wait for a model for which there is never enough memory; returns whether it is one."""
        reason = self._hopeless(model)
        if reason is not None:
            log.error("model_not_loaded", model=model.model_name, reason=reason)
            self._give_up(model, reason)
        return reason is not None

    def _give_up(self, model: ServedModel, reason: str) -> None:
        model.fail_to_load(reason)
        self._end_wait(model, _cannot_load(model, reason))

    def _ends_with(self, model: ServedModel) -> bool:
        """Whether the command ends, with the reason in a line of its own, because its only model cannot be loaded."""
        return len(self._models) == 1 and not model.is_open and model.settings.log_format == "console"

    def _end_wait(self, model: ServedModel, error: ApiError | None) -> None:
        """Removes a model from the load queue, and gives the outcome to those who wait for it."""
        self._wanted.pop(model, None)
        place = self._places.get(model)
        if place is None:
            return
        place.left.set()
        arrival, place.arrival = place.arrival, None
        if arrival is not None:
            arrival.set_result(error)

    async def _make_room_for(self, model: ServedModel) -> bool:
        """Puts other models to sleep until there is room; returns False if nobody wants the model any more.

        So it does where a model that nobody uses would have to make others sleep, or where no room can be made.
        """
        freed = 0
        while self._is_wanted(model):
            num_bytes = await self._bytes_missing(model, freed)
            if model not in self._places:  # it was removed meanwhile
                break
            self._changed.clear()
            others = self._in_memory_beside(model)
            leaving = [other for other in others if self._places[other].is_leaving]
            # Without a limit of its own, the model in whose place this one comes may end its streams beside it.
            num_models = len(others) - self.limit + 1 - (0 if self._models_max else len(leaving))
            if num_models <= 0 and num_bytes <= 0:
                return True
            if self._refuse_hopeless(model):
                return False
            if not self._places[model].num_users:
                self._end_wait(model, _cannot_load(model, NO_ROOM))
                return False
            if leaving:
                await self._wait_for_change(RETRY_S)
                continue
            chosen = self._choose(others, num_models, num_bytes)
            sizes = [self._bytes_of([other]) for other in chosen]
            for other, size in zip(chosen, sizes, strict=True):
                if other not in self._places or self._places[other].is_leaving:  # it was removed meanwhile
                    continue
                await self._put_to_sleep(other, in_favour_of=model)
                freed += 0 if other.is_in_memory else size
            if chosen:
                continue
            if num_models <= 0 and self._max_bytes is None and not self._that_may_go(others):
                return True  # whether there is enough memory is found by the load itself
            places = (self._places[other] for other in others)
            next_at = min((place.may_leave_at for place in places if place.may_leave_at > _now()), default=None)
            await self._wait_for_change(RETRY_S if next_at is None else next_at - _now())
        return False

    def _in_memory_beside(self, model: ServedModel) -> list[ServedModel]:
        return [other for other in self._models if other is not model and other.is_in_memory]

    def _that_may_go(self, others: Sequence[ServedModel]) -> list[ServedModel]:
        # One that an operator has paused keeps its requests where they are.
        return [
            other
            for other in others
            if other.engine_state is not EngineState.PAUSED and not other.has_failed and not other.is_pinned
        ]

    def _choose(self, others: Sequence[ServedModel], num_models: int, num_bytes: int) -> list[ServedModel]:
        """Chooses models to put to sleep, one at least if any may leave yet."""
        free = self._that_may_go(others)
        unused = [other for other in free if not self._places[other].num_users]
        if unused:
            candidates = [Candidate(other, self._bytes_of([other])) for other in unused]
            return self._uses.choose(candidates, num_models, num_bytes)
        used = [other for other in free if self._places[other].may_leave_at <= _now()]
        return [min(used, key=lambda other: self._places[other].may_leave_at)] if used else []

    async def _bytes_missing(self, model: ServedModel, freed: int) -> int:
        """The bytes that must get free for the model, as far as they are known; `freed` ones were a moment ago."""
        others, own = self._in_memory_beside(model), self._places[model].bytes
        if own is None or self._measure is None or (self._max_bytes is None and not others):
            return 0
        if self._max_bytes is not None:
            return own.usual + self._bytes_of(others) - self._max_bytes
        try:
            memory = await asyncio.to_thread(self._measure)
        except Exception as error:  # noqa: BLE001 - then the load finds out whether there is room
            log.warning("memory_not_measured", model=model.model_name, reason=f"{type(error).__name__}: {error}")
            return 0
        self._machine_bytes = memory.total
        return own.least - max(freed, memory.usable)

    def _bytes_of(self, models: Iterable[ServedModel]) -> int:
        """The bytes of weights and caches of models, as far as they are known."""
        known = (self._places[model].bytes for model in models)
        return sum(each.usual for each in known if each is not None)

    def _hopeless(self, model: ServedModel) -> str | None:
        """Why there is never enough memory for the model; None if there may be."""
        own, limit, of_whom = self._places[model].bytes, self._max_bytes, f"models_max_bytes is {self._max_bytes}"
        if limit is None:
            limit, of_whom = self._machine_bytes, f"the machine has {self._machine_bytes}"
        if own is None or limit is None:
            return None
        needed = own.least if self._max_bytes is None else own.usual
        pinned = self._bytes_of(each for each in self._in_memory_beside(model) if each.is_pinned)
        if needed + pinned <= limit:
            return None
        beside = f", and pinned models take {pinned}" if pinned else ""
        return f"it takes about {needed} bytes, weights and cache{beside}; {of_whom}"

    async def _put_to_sleep(self, leaving: ServedModel, *, in_favour_of: ServedModel) -> None:
        """Drains a model and frees its weights and pages. Stops early if `in_favour_of` is no longer wanted."""
        lifecycle, place = leaving.engine.lifecycle, self._places[leaving]
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
            if place.num_users:
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
