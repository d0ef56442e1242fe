"""Loads the models of a server in threads, starts their engines, and notices when one fails."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from engine.interface.background import run_in_background
from engine.interface.config import BACKEND_NAMES, EngineConfig, ModelInfo
from engine.interface.types import Progress
from server.protocol.errors import ApiError
from server.serving.adapters import InSlot
from server.serving.residency import PlannedLoad
from server.serving.served_model import ServedModel
from server.serving.served_models import ServedModels
from server.startup.logs import log
from server.startup.model_loader import LoadedModel
from server.startup.model_sizes import ModelBytes, bytes_before_pull
from server.startup.settings import ServerSettings

QUIET_S = 1.0  # without any answer, before a model is prepared for grammars
QUIET_POLL_S = 0.25

T = TypeVar("T")


class Planned(Protocol):
    """A model that was checked, as `ModelPlan`. The methods block."""

    @property
    def num_bytes(self) -> ModelBytes: ...

    def load(self, progress: Progress) -> LoadedModel: ...


Plan: TypeAlias = Callable[[ServerSettings, Progress], Planned]


class ModelLoader:
    """Loads models that were not loaded before. Made in the asyncio loop."""

    def __init__(
        self, served: ServedModels, plan: Plan, progress: Progress, on_loaded: Callable[[], None] = lambda: None
    ) -> None:
        """`plan` blocks; `on_loaded` is called in the thread of each load, at its end."""
        self._served = served
        self._plan = plan
        self._progress = progress
        self._on_loaded = on_loaded
        self._running: set[asyncio.Future[None]] = set()  # asyncio does not hold its tasks
        # The first engine that fails, and why. One failed engine ends the process: it may hold what the others need.
        self.failed: asyncio.Future[tuple[ServedModel, BaseException]] = asyncio.get_running_loop().create_future()

    async def known_bytes(self, model: ServedModel) -> ModelBytes:
        return await asyncio.to_thread(bytes_before_pull, model.settings)

    async def plan(self, model: ServedModel) -> PlannedLoad:
        """Pulls a model if it is missing, and checks it; raises what is wrong with it.

        Its load goes on to its end where the caller is cancelled, because a thread cannot be cancelled; then its engine
        is shut down. So is one that cannot be started. It raises what the load or the start of the engine raises.
        """

        def plan() -> tuple[Planned, ModelBytes]:
            planned = self._plan(model.settings, self._progress_of(model))
            return planned, planned.num_bytes

        planned, num_bytes = await self._in_background(plan, model)
        return PlannedLoad(num_bytes, partial(self._load, model, planned))

    async def check(self, settings: ServerSettings) -> None:
        """As `plan`, of a model that is not served yet; nothing is kept of it."""
        await run_in_background(partial(self._plan, settings, self._progress), name="eagre-check", is_calm=True)

    def _in_background(self, function: Callable[[], T], model: ServedModel) -> asyncio.Future[T]:
        """Runs a part of a load, beside others with a lower priority that leaves a core to them."""
        is_calm = any(other.is_open for other in self._served.all)  # one that sleeps may be woken meanwhile
        is_narrow = self._served.residency.is_beside_others(model)
        return run_in_background(function, name="eagre-load", is_calm=is_calm, is_narrow=is_narrow)

    async def _load(self, model: ServedModel, planned: Planned) -> None:
        """Loads a model and opens it."""

        def load() -> LoadedModel:
            loaded = planned.load(self._progress_of(model))
            self._on_loaded()
            return loaded

        loading = self._in_background(load, model)
        try:
            loaded = await asyncio.shield(loading)
        except asyncio.CancelledError:
            loading.add_done_callback(self._discard)
            raise
        finally:
            del loading  # the future keeps the error, whose traceback keeps this frame and so the future
        try:
            loaded.engine.start(asyncio.get_running_loop())
            loaded.engine.failure.add_done_callback(partial(self._note_failure, model))
            model.open(loaded.engine, loaded.text_model)
            places = {name: InSlot(*place) for name, place in loaded.adapters.items()}
            model.adapters.open(loaded.engine, loaded.num_adapter_slots, places)
        except BaseException:
            await loaded.engine.shutdown_in_background()  # others stream meanwhile
            raise
        self._run(prepare_when_quiet(self._served, model))
        _log_backends(model.model_name, loaded.engine.model_info, model.settings.engine)
        _log_length(model.model_name, loaded.engine.model_info, model.settings.engine)

    async def load_first(self) -> bool:
        """Waits until a model is loaded, of the start's or else any other; returns False if none can be."""
        residency, models = self._served.residency, self._served.all
        first = residency.first_models
        for model in (*first, *(model for model in models if model not in first)):
            with nullcontext() if model in first else residency.use(model):
                try:
                    await residency.arrival(model)
                except ApiError:
                    continue  # the log has the reason
                return True
        return await self.load_first() if self._served.all != models else False  # they may have changed meanwhile

    def _progress_of(self, model: ServedModel) -> Progress:
        """Returns a progress function that also sets the loading stage, which readiness reports."""

        def report(stage: str, done: int, total: int) -> None:
            model.loading_stage = f"{stage}, {done} of {total}" if total else stage
            self._progress(stage, done, total)

        return report

    def _discard(self, loading: asyncio.Future[LoadedModel]) -> None:
        """Shuts down the engine of a load whose caller was cancelled."""
        if not loading.cancelled() and loading.exception() is None:
            self._run(loading.result().engine.shutdown_in_background())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _note_failure(self, model: ServedModel, failure: asyncio.Future[None]) -> None:
        if not failure.cancelled() and not self.failed.done():
            error = failure.exception()
            assert error is not None
            self.failed.set_result((model, error))


async def prepare_when_quiet(served: ServedModels, model: ServedModel) -> None:
    """Builds a model's grammar vocabulary once no model has generated anything for QUIET_S seconds.

    The library holds the interpreter lock meanwhile, and streams would pause. An earlier grammar has it built at once.
    """
    seconds = 0.0
    while seconds < QUIET_S:
        await asyncio.sleep(QUIET_POLL_S)
        seconds = 0.0 if served.num_generations else seconds + QUIET_POLL_S
    try:
        await run_in_background(model.prepare_grammars, name="eagre-grammars")
    except Exception as error:  # noqa: BLE001 - the first grammar tries again, and its request gets the error
        log.warning("grammars_not_prepared", model=model.model_name, reason=str(error))


def _log_backends(model: str, info: ModelInfo, wanted: EngineConfig) -> None:
    """Logs which backends compute; a warning says why a faster one is missing and how to get it."""
    pairs = ((info.matmul_backend, wanted.matmul_backend), (info.attention_backend, wanted.attention_backend))
    fell_back = info.device == "cpu" and (BACKEND_NAMES[-1], "auto") in pairs
    backends = {"matmul": info.matmul_backend, "attention": info.attention_backend, "detail": info.backend_detail}
    (log.warning if fell_back else log.info)("backends", model=model, **backends)


def _log_length(model: str, info: ModelInfo, wanted: EngineConfig) -> None:
    """Warns where the model or the cache has room for fewer tokens than --max-model-len says."""
    if wanted.max_model_len is not None and info.max_model_len < wanted.max_model_len:
        log.warning(
            "max_model_len_reduced",
            model=model,
            max_model_len=info.max_model_len,
            detail=f"--max-model-len is {wanted.max_model_len}; the model's context, or the memory of its cache, ends "
            f"at {info.max_model_len} tokens",
        )
