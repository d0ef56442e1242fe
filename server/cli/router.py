"""`eagre serve --data-parallel` and the run of every router: it listens, starts its replicas, and drains at the end."""

import asyncio
import os
import secrets
from dataclasses import replace

from engine.interface.private_folder import temporary_folder
from server.admission.certificate import CertificateError
from server.admission.keyring import KeyFileError
from server.cli.listeners import CannotListen, Listeners
from server.cli.memory import freeze_gc, return_freed_memory
from server.cli.process import (
    EXIT_OK,
    EXIT_USAGE,
    LAST_EVENT_S,
    Announce,
    first_of,
    raise_file_limit,
    reload_on_hangup,
    watch_signals,
)
from server.http.app import read_keys
from server.router.application import router_application, router_metrics_application
from server.router.local.source import LocalReplicas
from server.router.replicas import Replicas, ReplicaSource, SourceFailed
from server.router.router import ROUTER, Router
from server.startup.logs import log, set_up_logs
from server.startup.model_settings import settings_of_each
from server.startup.settings import ServerSettings, SettingsError

POLL_S = 0.05  # while the last streams end


def run_local_replicas(settings: ServerSettings, announce: Announce) -> int:
    """Serves with several server processes until a signal; returns the exit status."""
    set_up_logs(settings.log_level, settings.log_format, settings.replica_name)
    raise_file_limit()
    freeze_gc()
    if settings.front_key is None:
        settings = replace(settings, front_key=secrets.token_urlsafe(24))
    with temporary_folder() as folder:  # for this user alone
        try:
            source = LocalReplicas(settings, os.environ, folder)
            settings_of_each(settings)  # what every server would refuse
        except SettingsError as error:
            announce(f"eagre: {error}")
            return EXIT_USAGE
        return asyncio.run(run_router(source, settings, announce))


async def run_router(source: ReplicaSource, settings: ServerSettings, announce: Announce) -> int:
    """Listens before a replica of `source` is ready, serves until a signal, and returns the exit status."""
    async with Replicas() as replicas:
        try:
            keys = read_keys(settings)
            app = router_application(replicas, settings, keys)
            metrics_app = None if settings.metrics_port is None else router_metrics_application(app)
            listeners = Listeners(settings, keys, app, metrics_app)
            stopped = watch_signals()

            async def reload() -> None:
                await listeners.reload()
                await source.reload()
                if settings.config is not None:
                    log.warning("config_kept", reason="the file of a server with replicas is read at its start alone")

            reloading = reload_on_hangup(reload)
            trimming = asyncio.ensure_future(return_freed_memory())
            await listeners.open()
        except (KeyFileError, CertificateError, CannotListen) as error:
            announce(f"eagre: {error}")
            return EXIT_USAGE
        starting = asyncio.create_task(source.start(replicas))
        starting.add_done_callback(lambda task: task.cancelled() or task.exception())  # where a signal comes first
        try:
            await first_of(starting, stopped)
            if not stopped.done():
                await starting
                announce(listeners.welcome(source.description))
                await stopped
            log.info("draining", signal=stopped.result(), num_streams=app[ROUTER].num_open)
            await _drain(app[ROUTER], source)
            return EXIT_OK
        except SourceFailed as error:
            announce(f"eagre: {error}")
            return error.status
        finally:
            starting.cancel()
            reloading.cancel()
            trimming.cancel()
            source.drain()
            await listeners.close()
            await source.stop()


async def _drain(router: Router, source: ReplicaSource) -> None:
    """Refuses new requests, and lets the open ones end within the shutdown timeout."""
    router.is_draining = True
    source.drain()
    for _ in range(int((router.settings.shutdown_timeout + LAST_EVENT_S) / POLL_S)):
        if not router.num_open:
            break
        await asyncio.sleep(POLL_S)
