"""The process that listens: it starts the servers, passes requests on to them, and drains them at the end."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from server.admission.certificate import CertificateError
from server.admission.keyring import KeyFileError
from server.cli.collector import calm_collector
from server.cli.listeners import CannotListen, Listeners
from server.cli.serve import (
    EXIT_FAILURE,
    EXIT_OK,
    EXIT_USAGE,
    LAST_WORDS_S,
    Announce,
    first_of,
    raise_file_limit,
    reload_on_hangup,
    watch_signals,
)
from server.http.app import read_keys
from server.router.application import front_application, front_metrics_application
from server.router.front import FRONT, Front
from server.router.local.accelerators import VISIBLE_GPUS, gpu_of_each
from server.router.local.replica_process import NeverReady, ReplicaProcess
from server.router.local.shares import check_shared, environment_of, settings_of_replica, socket_of
from server.router.replica import UNIX
from server.router.replicas import CHECK_S, Replicas
from server.startup.logs import log, set_up_logs
from server.startup.model_settings import settings_of_each
from server.startup.settings import ServerSettings, SettingsError

POLL_S = 0.05
END_S = 10.0  # for servers to end once their streams have
# A server that has left so many looks at its health unanswered, `HEALTH_S` each, is ended: after about a minute. It has
# lost its streams long before, so it is left the time in which a machine that swaps, or a debugger, may let it go on.
MOST_FROZEN = 12


def run_front(settings: ServerSettings, announce: Announce) -> int:
    """Serves until a signal, or until a server cannot start; returns the exit status."""
    set_up_logs(settings.log_level, settings.log_format, settings.replica_name)
    raise_file_limit()
    calm_collector()
    folder = Path(tempfile.mkdtemp(prefix="eagre-"))  # for this user alone
    try:
        return asyncio.run(serve_front(settings, announce, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def serve_front(settings: ServerSettings, announce: Announce, folder: Path) -> int:
    """Serves inside a running event loop; returns the exit status.

    Args:
        folder: of the servers' sockets, which nobody else can enter.
    """
    try:
        check_shared(settings)
        settings_of_each(settings)  # what every server would refuse
        gpus = gpu_of_each(settings.data_parallel, os.environ)
    except SettingsError as error:
        announce(f"eagre: {error}")
        return EXIT_USAGE
    if settings.front_key is None:
        settings = replace(settings, front_key=secrets.token_urlsafe(24))
    num_replicas = settings.data_parallel

    def start_of(index: int) -> ReplicaProcess:
        environment = environment_of(settings_of_replica(settings, index, folder), num_replicas, os.environ)
        return ReplicaProcess(str(index), environment | ({} if gpus is None else {VISIBLE_GPUS: gpus[index]}))

    processes = {str(index): start_of(index) for index in range(num_replicas)}
    async with Replicas() as replicas:
        try:
            keys = read_keys(settings)
            app = front_application(replicas, settings, keys)
            metrics_app = None if settings.metrics_port is None else front_metrics_application(app)
            listeners = Listeners(settings, keys, app, metrics_app)
            stopped = watch_signals()

            async def reload() -> None:
                for process in processes.values():
                    process.send_signal(signal.SIGHUP)
                await listeners.reload()

            reloading = reload_on_hangup(reload)
            await listeners.open()
        except (KeyFileError, CertificateError, CannotListen) as error:
            announce(f"eagre: {error}")
            return EXIT_USAGE
        replicas.update({name: f"{UNIX}{socket_of(folder, int(name))}" for name in processes})
        starting = asyncio.ensure_future(_start(processes, replicas))
        thawing = asyncio.ensure_future(end_frozen(processes, replicas))
        try:
            await first_of(starting, stopped)
            if stopped.done():
                return EXIT_OK
            keeping = starting.result()
            announce(f"Eagre serves {num_replicas} replicas at {listeners.address}")
            await first_of(stopped, *keeping)
            await _drain(app[FRONT], processes)
            return EXIT_OK
        except NeverReady as error:
            announce(f"eagre: {error}")
            return EXIT_USAGE if error.status == EXIT_USAGE else EXIT_FAILURE
        finally:
            starting.cancel()
            reloading.cancel()
            thawing.cancel()
            for process in processes.values():
                process.terminate()
            await listeners.close()
            await asyncio.gather(*(process.wait_ended(END_S) for process in processes.values()))


async def _start(processes: dict[str, ReplicaProcess], replicas: Replicas) -> list[asyncio.Future[None]]:
    """Starts the first server, and the others once it is ready: what it fetches and compiles is there for them.

    Raises:
        NeverReady: one of them has ended before.
    """
    keeping: list[asyncio.Future[None]] = []
    first, *others = processes
    try:
        for names in ([first], others):
            keeping += [asyncio.ensure_future(processes[name].keep_running()) for name in names]
            while not all(replica.has_been_ready for replica in replicas if replica.name in names):
                for task in keeping:
                    if task.done():
                        task.result()
                await asyncio.sleep(POLL_S)
            for name in names:
                processes[name].is_proven = True
        return keeping
    except BaseException:
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)
        raise


async def end_frozen(processes: Mapping[str, ReplicaProcess], replicas: Replicas) -> None:
    """Ends servers that were ready once and stay frozen, so that they are started again. It never returns."""
    while True:
        for replica in replicas:
            process = processes.get(replica.name)
            if process is not None and process.is_proven and replica.num_unanswered >= MOST_FROZEN:
                log.error("replica_frozen", replica=replica.name, detail=replica.detail)
                process.kill()
                replica.num_unanswered = 0  # the one that is started in its place has left nothing unanswered
        await asyncio.sleep(CHECK_S)


async def _drain(front: Front, processes: dict[str, ReplicaProcess]) -> None:
    """Refuses new requests, and lets the servers end what they have."""
    front.is_draining = True
    log.info("draining", num_streams=front.num_open)
    for process in processes.values():
        process.terminate()
    for _ in range(int((front.settings.shutdown_timeout + LAST_WORDS_S) / POLL_S)):
        if not front.num_open:
            break
        await asyncio.sleep(POLL_S)
