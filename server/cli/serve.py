"""`eagre serve`: listens, loads the models, serves, and drains running streams at the end."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from engine.interface.types import EngineStalled, Progress
from server.admission.certificate import CertificateError
from server.admission.keyring import KeyFileError
from server.cli.allocator import limit_arenas
from server.cli.collector import calm_collector
from server.cli.listeners import CannotListen, Listeners
from server.cli.model_loads import Load, ModelLoads
from server.serving.served_models import ServedModels
from server.startup.logs import log, set_up_logs
from server.startup.model_loader import LoadedModel, load_model
from server.startup.model_settings import settings_of_each
from server.startup.progress import ProgressReporter
from server.startup.settings import ServerSettings, SettingsError
from server.storage.record_table import StoreError
from server.telemetry.tracing import open_tracing
from server.text.tokenization.tokenizers_encoder import disable_tokenizers_threads

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2

SAME_SIGNAL_S = 1.0  # a repetition within this time is ignored: a parent such as make may forward its own signal
LAST_WORDS_S = 2.0  # the time for aborted or failed streams to write their last event
JOIN_S = 0.5  # the time for the engine's last step; the process ends then, whether or not the step has

Announce: TypeAlias = Callable[[str], None]


def run_server(settings: ServerSettings, announce: Announce) -> int:
    """Serves until a signal or a failure, and then ends the process with an exit status."""
    set_up_logs(settings.log_level, settings.log_format, settings.replica_name)
    raise_file_limit()
    limit_arenas()
    disable_tokenizers_threads()
    with ProgressReporter() as progress:
        status = asyncio.run(serve(settings, announce, progress, _make_calm_load()))
    # After a signal during loading, a thread is still inside the compiler. The normal exit of the interpreter
    # could crash it or wait for it.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _make_calm_load() -> Load:
    """Loads models for a process that only serves."""

    def load(settings: ServerSettings, progress: Progress) -> LoadedModel:
        loaded = load_model(settings, progress)
        calm_collector()
        return loaded

    return load


def raise_file_limit() -> None:
    """Lets the process open as many files as the system allows it; many shells start with 1,024, few for sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # some systems have a lower limit that they do not tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def serve(settings: ServerSettings, announce: Announce, progress: Progress, load: Load = load_model) -> int:
    """Serves inside a running event loop; returns the exit status.

    The socket listens before a model is loaded, so that readiness can report the progress.
    """
    try:
        served = ServedModels(settings, settings_of_each(settings))
        listeners = Listeners.of(served)
    except (SettingsError, KeyFileError, CertificateError, StoreError) as error:
        announce(f"eagre: {error}")
        return EXIT_USAGE
    served.tracing = open_tracing(os.environ)
    stopped = watch_signals()
    reloading = _reload_on_hangup(listeners)
    loads = ModelLoads(served, load, progress)
    try:
        try:
            await listeners.open()
        except CannotListen as error:
            announce(f"eagre: {error}")
            return EXIT_USAGE
        served.start(loads.bring)
        first = asyncio.ensure_future(loads.first())
        await first_of(first, stopped)
        if not first.done():
            first.cancel()
            return EXIT_OK
        if not first.result():
            for model in served.all:
                if model.load_error is not None:
                    announce(f"eagre: {model.load_error}")
            return EXIT_FAILURE
        announce(_welcome(", ".join(served.names), listeners))
        return await _serve_until_stopped(served, loads, stopped)
    finally:
        reloading.cancel()
        await listeners.close()
        engines = [model.engine for model in served.all if model.is_open]
        for engine in engines:
            engine.shutdown(JOIN_S / len(engines))
        if served.tracing is not None:
            served.tracing.close()


def _welcome(model: str, listeners: Listeners) -> str:
    """The line that says where the server is."""
    address = listeners.address
    where = f"at {address}" if address.startswith("unix:") else f"; open {address}/ in a browser"
    metrics = "" if listeners.metrics_port is None else f"; metrics have port {listeners.metrics_port}"
    return f"Eagre serves {model}{'' if where.startswith(';') else ' '}{where}{metrics}"


async def _serve_until_stopped(served: ServedModels, loads: ModelLoads, stopped: asyncio.Future[str]) -> int:
    await first_of(stopped, loads.failed)
    if not loads.failed.done():
        log.info("draining", signal=stopped.result(), num_streams=served.num_generations)
        await drain(served, served.settings.shutdown_timeout)
    if not loads.failed.done():
        return EXIT_OK
    model, error = loads.failed.result()
    log.error("engine_failed", model=model.model_name, exc_info=error)
    if isinstance(error, EngineStalled):
        faulthandler.dump_traceback(all_threads=True)  # on standard error: where every thread stands
    served.abort_all()  # a hung engine may hold the kernels' threads, which the others need too
    await served.wait_idle(LAST_WORDS_S)
    return EXIT_FAILURE


async def drain(served: ServedModels, seconds: float) -> None:
    """Refuses new requests, waits up to `seconds` for running streams, and then aborts the remaining ones."""
    served.start_draining()
    if await served.wait_idle(seconds):
        return
    log.warning("drain_timeout", num_streams=served.num_generations)
    served.abort_all()
    if not await served.wait_idle(LAST_WORDS_S):
        served.end_streams()  # an engine is in a step that does not end
        await served.wait_idle(1.0)


async def first_of(*futures: asyncio.Future[Any]) -> None:
    """Returns when one of them is done."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def watch_signals() -> asyncio.Future[str]:
    """Resolves to the name of the first SIGTERM or SIGINT; a second signal ends the process at once.

    A repetition of the first signal within SAME_SIGNAL_S is ignored.
    """
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[str] = loop.create_future()
    stopped_at = 0.0

    def on_signal(number: signal.Signals) -> None:
        nonlocal stopped_at
        if not stopped.done():
            stopped_at = loop.time()
            stopped.set_result(number.name)
        elif number.name != stopped.result() or loop.time() - stopped_at > SAME_SIGNAL_S:
            os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return stopped


def _reload_on_hangup(listeners: Listeners) -> asyncio.Task[None]:
    return reload_on_hangup(listeners.reload)


def reload_on_hangup(read_again: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
    """SIGHUP, which would end the process, reads keys and certificate again.

    One reading follows the other, so that what was read first is never what holds in the end. Signals that come during
    a reading ask together for one more. The task must be held: one that nobody holds may be collected.
    """
    hung_up = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # a front holds it back from its servers until here

    async def reload() -> None:
        while True:
            await hung_up.wait()
            hung_up.clear()
            try:
                await read_again()
            except Exception:  # noqa: BLE001 - the next signal must find its reader
                log.exception("reload_failed")

    return asyncio.create_task(reload())
