"""`eagre serve`: listens, loads the models, serves, and drains running streams at the end."""

import asyncio
import faulthandler
import os
import sys
from collections.abc import Callable

from engine.interface.types import EngineStalled, Progress
from server.admission.certificate import CertificateError
from server.admission.keyring import KeyFileError
from server.cli.listeners import CannotListen, Listeners
from server.cli.memory import freeze_gc, limit_malloc_arenas, return_freed_memory
from server.cli.model_loader import ModelLoader, Plan
from server.cli.process import (
    EXIT_FAILURE,
    EXIT_OK,
    EXIT_USAGE,
    LAST_EVENT_S,
    Announce,
    first_of,
    raise_file_limit,
    reload_on_hangup,
    watch_signals,
)
from server.protocol.base_models import build_validators
from server.serving.reconfiguration import Reconfiguration
from server.serving.served_models import ServedModels
from server.startup.logs import log, set_up_logs
from server.startup.model_loader import plan_model
from server.startup.model_settings import settings_of_each
from server.startup.model_sizes import machine_memory
from server.startup.progress import ProgressReporter
from server.startup.settings import ServerSettings, SettingsError
from server.storage.database import StoreError
from server.telemetry.tracing import open_tracing
from server.text.tokenization.tokenizers_encoder import disable_tokenizers_threads

BUILD_AFTER_S = 1.0  # after readiness: a request that comes at once has the processor for itself
JOIN_S = 0.5  # for the engine's last step; the process ends then, whether or not the step has


def run_server(
    settings: ServerSettings, announce: Announce, read_again: Callable[[], ServerSettings] | None = None
) -> int:
    """Serves until a signal or a failure, and then ends the process with an exit status.

    `read_again` reads the settings from their file once more, at a SIGHUP; it raises SettingsError.
    """
    set_up_logs(settings.log_level, settings.log_format, settings.replica_name)
    raise_file_limit()
    limit_malloc_arenas()
    disable_tokenizers_threads()
    with ProgressReporter() as progress:
        status = asyncio.run(serve(settings, announce, progress, plan_model, read_again, on_loaded=freeze_gc))
    # After a signal during loading, a thread is still inside the compiler. The normal exit of the interpreter
    # could crash it or wait for it.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


async def serve(
    settings: ServerSettings,
    announce: Announce,
    progress: Progress,
    plan: Plan = plan_model,
    read_again: Callable[[], ServerSettings] | None = None,
    *,
    on_loaded: Callable[[], None] = lambda: None,
) -> int:
    """Listens before a model is loaded, serves until a signal, and returns the exit status."""
    try:
        served = ServedModels(settings, settings_of_each(settings))
        listeners = Listeners.of(served)
    except (SettingsError, KeyFileError, CertificateError, StoreError) as error:
        announce(f"eagre: {error}")
        return EXIT_USAGE
    served.tracing = open_tracing(os.environ)
    stopped = watch_signals()
    loader = ModelLoader(served, plan, progress, on_loaded)
    reconfiguration = None if read_again is None else Reconfiguration(served, read_again, loader.check)

    async def reload() -> None:
        await listeners.reload()
        if reconfiguration is not None:
            await reconfiguration.apply()

    reloading = reload_on_hangup(reload)
    trimming = asyncio.ensure_future(return_freed_memory())
    try:
        try:
            await listeners.open()
        except CannotListen as error:
            announce(f"eagre: {error}")
            return EXIT_USAGE
        served.start(loader, machine_memory)
        first = asyncio.ensure_future(loader.load_first())
        await first_of(first, stopped)
        if not first.done():
            first.cancel()
            return EXIT_OK
        if not first.result():
            if len(served.all) > 1:
                announce("eagre: none of the models could be loaded")  # the log has the reasons
            elif settings.log_format == "console":
                announce(f"eagre: {served.first.load_error}")
            return EXIT_FAILURE
        announce(listeners.welcome(", ".join(served.names)))
        loop = asyncio.get_running_loop()
        building = loop.call_later(BUILD_AFTER_S, loop.run_in_executor, None, build_validators)
        stopped.add_done_callback(lambda _: building.cancel())
        return await _serve_until_stopped(served, loader, stopped)
    finally:
        reloading.cancel()
        trimming.cancel()
        await listeners.close()
        engines = [model.engine for model in served.with_leaving if model.is_open]
        for engine in engines:
            engine.shutdown(JOIN_S / len(engines))
        if served.tracing is not None:
            served.tracing.close()


async def _serve_until_stopped(served: ServedModels, loader: ModelLoader, stopped: asyncio.Future[str]) -> int:
    await first_of(stopped, loader.failed)
    if not loader.failed.done():
        log.info("draining", signal=stopped.result(), num_streams=served.num_generations)
        await drain(served, served.settings.shutdown_timeout)
    if not loader.failed.done():
        return EXIT_OK
    model, error = loader.failed.result()
    log.error("engine_failed", model=model.model_name, exc_info=error)
    if isinstance(error, EngineStalled):
        faulthandler.dump_traceback(all_threads=True)  # on standard error: the stack of every thread
    served.abort_all()  # a hung engine may hold the kernels' threads, which the others need too
    await served.wait_idle(LAST_EVENT_S)
    return EXIT_FAILURE


async def drain(served: ServedModels, seconds: float) -> None:
    """Refuses new requests, waits up to `seconds` for running streams, and then aborts the remaining ones."""
    served.start_draining()
    if await served.wait_idle(seconds):
        return
    log.warning("drain_timeout", num_streams=served.num_generations)
    served.abort_all()
    if not await served.wait_idle(LAST_EVENT_S):
        served.end_streams()  # an engine is in a step that does not end
        await served.wait_idle(1.0)
