"""All models of a server, and what their requests share: budgets, threads, registries."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from enum import StrEnum
from pathlib import Path

from engine.interface.errors import ModelError
from engine.interface.types import EngineBusy, EngineError
from server.admission.admission_budget import AdmissionBudget
from server.admission.loop_throttle import LoopThrottle
from server.admission.workers import Workers
from server.generation.generation import Generation
from server.media.picture_loader import PictureLoader
from server.protocol.errors import model_not_found, unavailable
from server.serving.ignored_parameters import IgnoredParameters
from server.serving.residency import Loader, Measure, Residency
from server.serving.running_requests import RunningRequests
from server.serving.served_model import ServedModel
from server.serving.submit import Submission, Submitter
from server.startup.logs import log
from server.startup.model_settings import settings_of_another
from server.startup.settings import MetricsNames, ServerSettings
from server.storage.batch_figures import BatchFigures
from server.storage.record_store import RecordStore
from server.streams.stream_registry import StreamRegistry
from server.telemetry.metrics_page import MetricsPage, ProcessGauge
from server.telemetry.request_log import RequestLog
from server.telemetry.tracing import Tracing


class Phase(StrEnum):
    """The state of the server; the values are the wire names."""

    LOADING = "loading"  # no model has been loaded yet
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class ServedModels:
    """The models of one server, and what they share: threads, budgets, and the ids of requests."""

    def __init__(self, settings: ServerSettings, each: Sequence[ServerSettings] | None = None) -> None:
        """Must be called in the asyncio loop, with settings of the server and, where there are several, of each model.

        Raises StoreError: the file of the store cannot be used.
        """
        self.settings = settings
        self.store = RecordStore(
            None if settings.store is None else Path(settings.store),
            max_records=settings.store_records,
            max_bytes=settings.store_bytes,
            max_file_bytes=settings.store_file_bytes,
        )
        self.workers = Workers()
        self.turns = LoopThrottle()  # of clients
        self.admission_budget = AdmissionBudget(
            max_bytes=settings.max_preparing_bytes, max_requests=settings.max_preparing_requests
        )
        self.requests = RunningRequests()
        self.request_log = RequestLog(settings.inspect_bytes) if settings.inspect_requests else None
        self.streams = StreamRegistry(
            grace=settings.resume_grace,
            max_bytes=settings.resume_max_bytes,
            max_streams=settings.resume_max_streams,
        )
        self.ignored_parameters = IgnoredParameters(is_strict=settings.strict_parameters)
        self.started_at = int(time.time())
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = asyncio.Event()  # set once the server ends
        self.batch_figures = BatchFigures()
        self._was_ready = False  # before its models were changed
        self.all = tuple(ServedModel(own, self._count) for own in each or (settings,))
        self.residency = Residency(self.all, settings.models_max, settings.models_max_bytes)
        self._leaving: dict[ServedModel, asyncio.Task[None]] = {}
        self.pictures = PictureLoader(settings.allowed_media_hosts, settings.allowed_media_path)
        self._submitter = Submitter(
            self.check_accepting, self.requests, self.residency, self.admission_budget, self.turns, self.workers,
            self.request_log, self.pictures,
        )  # fmt: skip
        gauges = (
            ProcessGauge(
                "eagre_held_streams", "Streams that are kept for their readers", lambda: self.streams.num_streams
            ),
            ProcessGauge(
                "eagre_store_failures", "Calls of the store that failed so far", lambda: self.store.num_failures
            ),
            ProcessGauge("eagre_held_stream_bytes", "Bytes of their events", lambda: self.streams.num_bytes),
            *_batch_gauges(self.batch_figures),
        )
        self._by_metrics = {model.metrics: model for model in self.all}
        self.metrics = MetricsPage(self._by_metrics, MetricsNames(settings.metrics_names), gauges)

    def add(self, name: str) -> ServedModel:
        """Serves one more model, which requests for it load; as many as before are in memory at once.

        Raises SettingsError: it cannot be served beside the others.
        """
        own = settings_of_another(self.settings, self.first.settings, name, len(self.all))
        model = ServedModel(own, self._count)
        self._by_metrics[model.metrics] = model
        self.all = (*self.all, model)
        self.residency.add(model)
        return model

    def change(self, settings: ServerSettings, each: Sequence[ServedModel | ServerSettings]) -> None:
        """Serves other models from now on: those that stay, and new ones by their settings, which requests load.

        Those that are not among them end the requests that they have, and are freed then.
        """
        known, self.settings = self.all, settings
        self._was_ready |= self.phase is Phase.READY
        self.all = tuple(
            ServedModel(model, self._count) if isinstance(model, ServerSettings) else model for model in each
        )
        for model in self.all:
            if model not in known:
                self._by_metrics[model.metrics] = model
                self.residency.add(model)
                for before in known:
                    if before not in self.all and before.model_name == model.model_name:
                        model.keep_adapters(before)
        for model in known:
            if model not in self.all:
                del self._by_metrics[model.metrics]  # its name may be another's from now on
                self._leaving[model] = asyncio.create_task(self._remove(model))
        self.residency.set_limits(settings.models_max, settings.models_max_bytes, len(self.all))
        self.residency.load_first()

    async def _remove(self, model: ServedModel) -> None:
        try:
            await self.residency.leave(model)
            if model.is_open:
                with suppress(EngineBusy, EngineError, ModelError):  # then the engine's end gives its memory back
                    await model.engine.lifecycle.sleep(forget_weights=True)
                model.is_ending = True
                await model.engine.shutdown_in_background()
            await model.close()
            log.info("model_removed", model=model.model_name, path=model.settings.model)
        except asyncio.CancelledError:  # the server ends
            if model.is_open:
                model.engine.shutdown(0.0)
            raise
        except Exception:  # noqa: BLE001 - the other models go on
            log.exception("model_not_removed", model=model.model_name)
        finally:
            self.residency.remove(model)
            del self._leaving[model]

    @property
    def with_leaving(self) -> Sequence[ServedModel]:
        """All models, and those that are served no more but to the ends of their requests."""
        return (*self.all, *self._leaving)

    def start(self, loader: Loader, measure: Measure | None = None) -> None:
        """Begins to load the models with `loader`; `measure` tells the memory of the machine."""
        self.residency.start(loader, measure)

    async def close(self) -> None:
        """Ends what runs beside the requests; the engines belong to somebody else."""
        await self.streams.close()
        await self.residency.stop()
        models, leaving = self.with_leaving, tuple(self._leaving.values())
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        for model in models:
            await model.close()
        self.pictures.close()
        self.workers.close()
        await self.store.close()

    @property
    def tracing(self) -> Tracing | None:
        """What makes the spans of requests; None where the environment does not ask for them."""
        return self._submitter.tracing

    @tracing.setter
    def tracing(self, tracing: Tracing | None) -> None:
        self._submitter.tracing = tracing

    @property
    def first(self) -> ServedModel:
        """The model of requests that name none."""
        return self.all[0]

    @property
    def names(self) -> list[str]:
        """Of all models, without those of adapters."""
        return [model.model_name for model in self.all]

    @property
    def all_names(self) -> list[str]:
        """The names of the models, and those that files give them besides."""
        return [*self.names, *(name for model in self.all for name in model.further_names)]

    @property
    def phase(self) -> Phase:
        phase = Phase.READY if self._was_ready else Phase.LOADING
        for model in self.with_leaving:
            if model.has_failed:
                return Phase.FAILED
            if model.is_open:
                phase = Phase.READY
        return Phase.DRAINING if self.draining.is_set() else phase

    @property
    def is_alive(self) -> bool:
        """Whether every engine thread turns; a server that still loads is alive too."""
        return all(model.is_alive for model in self.with_leaving)

    @property
    def loading_stage(self) -> str:
        """The current loading stage, as readiness reports it."""
        return next((model.loading_stage for model in self.all if model.loading_stage is not None), "starting")

    @property
    def num_generations(self) -> int:
        return sum(model.num_generations for model in self.with_leaving)

    def check_accepting(self) -> None:
        """Raises ApiError, EngineError: the server is not ready; both mean 503."""
        match self.phase:
            case Phase.LOADING:
                raise unavailable(f"the model is loading ({self.loading_stage})", "loading")
            case Phase.DRAINING:
                raise unavailable("the server is shutting down", "draining")
            case Phase.FAILED:
                raise EngineError("the engine has failed")

    def check_room_to_wait(self, model: ServedModel) -> None:
        """Raises ApiError: 429, the model is not loaded yet, and too many requests wait for such models already."""
        if not model.is_open:
            self.admission_budget.check_load()

    def find(self, name: str | None) -> ServedModel:
        """The model that clients know by this name or that of one of its adapters, None for the first.

        Raises ApiError (404) where there is none.
        """
        if name is None:
            return self.first
        for model in self.all:
            if name == model.model_name or name in model.further_names:
                return model
        for model in self.all:
            if name in model.adapters:
                return model
        raise model_not_found(
            name, [*self.all_names, *(each.name for model in self.all for each in model.adapters.all)]
        )

    def generate(self, model: ServedModel, submission: Submission) -> AbstractAsyncContextManager[Generation]:
        """`Submitter.submit`."""
        return self._submitter.submit(model, submission)

    async def first_load(self, model: ServedModel) -> None:
        """Waits while the server has loaded no model yet, for one in whose use it waits; raises ApiError."""
        if self.phase is Phase.LOADING:
            with self.residency.use(model):
                await self.residency.arrival(model)

    async def wake(self, model: ServedModel) -> None:
        """Brings the model into memory and lets it compute; raises ApiError, or EngineError for a failed engine."""
        with self.residency.use(model):
            await self.residency.arrival(model)
            await model.engine.lifecycle.wake(is_beside_others=self.residency.is_beside_others(model))

    def start_draining(self) -> None:
        """Refuses new work and what waits for a model that was never loaded; ends logged streams that nobody reads."""
        self.draining.set()
        self.streams.stop_unread()
        self._submitter.cancel_loads()

    async def wait_idle(self, seconds: float) -> bool:
        """Whether every running generation came to its end within `seconds`."""
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def abort_all(self) -> None:
        """Every running generation ends with finish_reason "abort"."""
        for model in self.with_leaving:
            model.abort_all()

    def end_streams(self) -> None:
        """Ends every stream, even if its engine thread is stuck."""
        for model in self.with_leaving:
            if model.is_open:
                model.engine.end_streams()

    def _count(self) -> None:
        """Sets or clears the idle event that `wait_idle` waits for."""
        if self.num_generations:
            self._idle.clear()
        else:
            self._idle.set()


def _batch_gauges(figures: BatchFigures) -> Sequence[ProcessGauge]:
    return (
        ProcessGauge("eagre_batches_open", "Batches that have not ended", lambda: figures.num_open),
        ProcessGauge(
            "eagre_batch_requests_waiting", "Requests of batches without an answer", lambda: figures.num_waiting
        ),
        ProcessGauge("eagre_batch_requests_running", "Of these, those that run", lambda: figures.num_running),
        ProcessGauge(
            "eagre_batch_requests_answered", "Requests of batches answered so far", lambda: figures.num_answered
        ),
    )
