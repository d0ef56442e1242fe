"""All served models as the routes see them: which one a request goes to, and what they share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from engine.interface.types import EngineError
from server.admission.admission_budget import AdmissionBudget
from server.admission.keyring import ANYBODY, Tenant
from server.admission.loop_throttle import LoopThrottle
from server.admission.workers import Workers
from server.generation.generation import Generation, TellProgress
from server.generation.generation_request import GenerationRequest
from server.generation.metrics_names import MetricsNames
from server.generation.metrics_page import MetricsPage, ProcessGauge
from server.generation.running_requests import RunningRequest, RunningRequests
from server.protocol.errors import SERVER_ERROR, ApiError, model_not_found, unavailable
from server.serving.ignored_parameters import IgnoredParameters
from server.serving.load_progress import telling_of_load
from server.serving.residency import Bring, Residency
from server.serving.served_model import ServedModel
from server.startup.settings import ServerSettings
from server.storage.record_store import RecordStore
from server.streams.stream_registry import StreamRegistry
from server.telemetry.request_record import RequestRecord
from server.telemetry.request_records import RequestRecords
from server.telemetry.tracing import Tracing


class Phase(StrEnum):
    """Where the server stands; the values are the wire names."""

    LOADING = "loading"  # no model has been loaded yet
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class ServedModels:
    """The models of one server, and what they share: threads, budgets, and the ids of requests."""

    def __init__(self, settings: ServerSettings, each: Sequence[ServerSettings] | None = None) -> None:
        """Must be called in the asyncio loop.

        Args:
            settings: of the server.
            each: of each of its models; by default there is one, with those of the server.

        Raises:
            StoreError: the file of the store cannot be used.
        """
        self.settings = settings
        self.store = RecordStore(
            None if settings.store is None else Path(settings.store),
            max_records=settings.store_records,
            max_bytes=settings.store_bytes,
        )
        self.workers = Workers()
        self.turns = LoopThrottle()  # of clients
        self.admission_budget = AdmissionBudget(
            max_bytes=settings.max_preparing_bytes, max_requests=settings.max_preparing_requests
        )
        self.requests = RunningRequests()
        self.records = RequestRecords(settings.inspect_bytes) if settings.inspect_requests else None
        self.streams = StreamRegistry(
            grace=settings.resume_grace,
            max_bytes=settings.resume_max_bytes,
            max_streams=settings.resume_max_streams,
        )
        self.ignored_parameters = IgnoredParameters(is_strict=settings.strict_parameters)
        self.started_at = int(time.time())
        self.tracing: Tracing | None = None  # where the environment asks for it
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False
        self._arrivals: set[asyncio.Task[None]] = set()  # of models that requests wait for before they can be queued
        self.all = tuple(ServedModel(own, self.workers, self._count) for own in each or (settings,))
        self.residency = Residency(self.all, settings.models_max or len(self.all))
        gauges = (
            ProcessGauge(
                "eagre_held_streams", "Streams that are kept for their readers", lambda: self.streams.num_streams
            ),
            ProcessGauge("eagre_held_stream_bytes", "Bytes of their events", lambda: self.streams.num_bytes),
        )
        self.metrics = MetricsPage(
            {model.metrics: model for model in self.all}, MetricsNames(settings.metrics_names), gauges
        )

    def start(self, bring: Bring) -> None:
        """Begins to load the models.

        Args:
            bring: loads one and opens it.
        """
        self.residency.start(bring)

    async def close(self) -> None:
        """Ends what runs beside the requests; the engines belong to somebody else."""
        await self.streams.close()
        await self.residency.stop()
        for model in self.all:
            await model.close()
        self.workers.close()
        await self.store.close()

    @property
    def first(self) -> ServedModel:
        """The model of requests that name none."""
        return self.all[0]

    @property
    def names(self) -> list[str]:
        return [model.model_name for model in self.all]

    @property
    def phase(self) -> Phase:
        if any(model.has_failed for model in self.all):
            return Phase.FAILED
        if self._is_draining:
            return Phase.DRAINING
        return Phase.READY if any(model.is_open for model in self.all) else Phase.LOADING

    @property
    def is_alive(self) -> bool:
        """Whether every engine thread turns; a server that still loads is alive too."""
        return all(model.is_alive for model in self.all)

    @property
    def loading_stage(self) -> str:
        """What is being done before the first model can answer."""
        return next((model.loading_stage for model in self.all if model.loading_stage is not None), "starting")

    @property
    def num_generations(self) -> int:
        return sum(model.num_generations for model in self.all)

    def check_accepting(self) -> None:
        """
        Raises:
            ApiError, EngineError: the server is not ready; both mean 503.
        """
        match self.phase:
            case Phase.LOADING:
                raise unavailable(f"the model is loading ({self.loading_stage})", "loading")
            case Phase.DRAINING:
                raise unavailable("the server is shutting down", "draining")
            case Phase.FAILED:
                raise EngineError("the engine has failed")

    def check_room_to_wait(self, model: ServedModel) -> None:
        """
        Raises:
            ApiError: 429, the model is not loaded yet, and too many requests wait for such models already.
        """
        if not model.is_open:
            self.admission_budget.check_load()

    def find(self, name: str | None) -> ServedModel:
        """The model that clients know by this name; None means the first.

        Raises:
            ApiError: 404, there is none of this name.
        """
        if name is None:
            return self.first
        for model in self.all:
            if model.model_name == name:
                return model
        raise model_not_found(name, self.names)

    @asynccontextmanager
    async def generate(
        self,
        model: ServedModel,
        request: GenerationRequest,
        *,
        tenant: Tenant = ANYBODY,
        request_ids: Sequence[str] = (),
        tell_progress: TellProgress | None = None,
        was_accepted: bool = False,
    ) -> AsyncIterator[Generation]:
        """Submits `request` to `model`. Whatever still runs when the context is left is aborted.

        A model that was never loaded is waited for, for no longer than the request may take. One that sleeps takes the
        request into its queue.

        Args:
            tenant: whose request it is.
            request_ids: names by which the tenant may cancel it.
            tell_progress: told how the request waits for its first token, if it asks for that.
            was_accepted: whether its client was told before that it is going to be answered: then it may wait for a
                model however many others do.

        Raises:
            ApiError, InvalidParameter, QueueFull, EngineError: the request is refused.
        """
        tracing = self.tracing
        with nullcontext() if tracing is None else tracing.span(request, model.model_name, request_ids) as span:
            async with self._generate(model, request, tenant, request_ids, tell_progress, was_accepted) as generation:
                if span is not None:
                    span.follow(generation)
                yield generation

    @asynccontextmanager
    async def _generate(
        self,
        model: ServedModel,
        request: GenerationRequest,
        tenant: Tenant,
        request_ids: Sequence[str],
        tell_progress: TellProgress | None,
        was_accepted: bool,
    ) -> AsyncIterator[Generation]:
        self.check_accepting()
        tell = tell_progress if request.streaming.tells_progress else None
        request = replace(
            request,
            priority=tenant.check_priority(request.priority),
            cache_salt=tenant.cache_salt(request.cache_salt),
            tenant=tenant.name,
        )
        with (
            self.requests.hold(tenant.salt, request_ids) as running,
            self.residency.use(model),
            self._record(request_ids, tenant, model) as record,
        ):
            if record is not None and self.records is not None:
                await self.records.describe(record, request, self.workers)
            if not model.is_open:
                with nullcontext() if was_accepted else self.admission_budget.wait_for_load():
                    request = await self._wait_for(model, request, running, tell)
                await self.turns.next()  # all that have waited go on together
                self.check_accepting()
            async with model.generate(request, running, self.check_accepting, tell, record) as generation:
                self.residency.ask_for(model)  # once more: a load may have failed before the request was in the queue
                yield generation

    async def first_load(self, model: ServedModel) -> None:
        """Waits while the server has loaded no model yet; returns at once otherwise.

        Args:
            model: whoever waits is going to use it.

        Raises:
            ApiError: it cannot be loaded.
        """
        if self.phase is Phase.LOADING:
            with self.residency.use(model):
                await self.residency.arrival(model)

    async def wake(self, model: ServedModel) -> None:
        """Brings the model into memory and lets it compute.

        Raises:
            ApiError: it cannot be loaded.
            EngineError: its engine has failed.
        """
        with self.residency.use(model):
            await self.residency.arrival(model)
            await model.engine.lifecycle.wake(is_beside_others=self.residency.is_beside_others(model))

    def start_draining(self) -> None:
        """Refuses new work from now on, and what waits for a model that was never loaded.

        Logged streams that nobody reads end: their clients will hardly come back in time.
        """
        self._is_draining = True
        self.streams.stop_unread()
        for arrival in tuple(self._arrivals):
            arrival.cancel()

    async def wait_idle(self, seconds: float) -> bool:
        """Whether every running generation came to its end within `seconds`."""
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def abort_all(self) -> None:
        """Every running generation ends with finish_reason "abort"."""
        for model in self.all:
            model.abort_all()

    def end_streams(self) -> None:
        """Ends every stream, also those of engines that no longer turn."""
        for model in self.all:
            if model.is_open:
                model.engine.end_streams()

    def _record(
        self, request_ids: Sequence[str], tenant: Tenant, model: ServedModel
    ) -> AbstractContextManager[RequestRecord | None]:
        """The record of a request while the context lasts; None where none is kept."""
        if self.records is None:
            return nullcontext()
        return self.records.watching(request_ids, tenant.name, model.model_name)

    async def _wait_for(
        self, model: ServedModel, request: GenerationRequest, running: RunningRequest, tell: TellProgress | None
    ) -> GenerationRequest:
        """Waits for a model that was never loaded; returns the request with the time that is left to it.

        Raises:
            ApiError: the model cannot be loaded, or not within the time of the request; or the request is cancelled.
        """
        limits = model.settings.engine
        timeouts = [limit for limit in (request.timeout, limits.request_timeout) if limit is not None]
        waits = [limit for limit in (*timeouts, limits.queue_timeout) if limit is not None]
        clock = asyncio.get_running_loop().time
        began = clock()
        arrival = asyncio.ensure_future(self.residency.arrival(model))
        running.on_cancel = arrival.cancel
        self._arrivals.add(arrival)
        arrival.add_done_callback(self._arrivals.discard)
        try:
            async with telling_of_load(model, tell):
                await asyncio.wait_for(arrival, min(waits, default=None))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the client has left
            self.check_accepting()
            raise ApiError(
                f"the request was cancelled before the model {model.model_name} was loaded",
                status=409,
                code="cancelled",
            ) from None
        except TimeoutError:
            raise ApiError(
                f"the model {model.model_name} was not loaded within the {min(waits):g} s that the request may wait",
                status=504,
                error_type=SERVER_ERROR,
                code="timeout",
            ) from None
        if not timeouts:
            return request
        return replace(request, timeout=max(min(timeouts) - (clock() - began), 0.001))

    def _count(self) -> None:
        """Notes whether anything runs."""
        if self.num_generations:
            self._idle.clear()
        else:
            self._idle.set()
