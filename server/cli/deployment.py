"""`eagre deploy`: an application of Ray Serve with a front before its replicas, from the start to the end."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from server.admission.certificate import CertificateError
from server.admission.keyring import KeyFileError
from server.cli.listeners import CannotListen, Listeners
from server.cli.serve import (
    EXIT_FAILURE,
    EXIT_OK,
    EXIT_USAGE,
    Announce,
    first_of,
    raise_file_limit,
    reload_on_hangup,
    watch_signals,
)
from server.http.app import read_keys
from server.router.application import front_application, front_metrics_application
from server.router.front import FRONT, Front
from server.router.ray.application import CannotDeploy, RayApplication
from server.router.ray.plan import DeployPlan
from server.router.ray.replica_environment import replica_environment
from server.router.replicas import Replicas
from server.startup.logs import log, set_up_logs
from server.startup.settings import ServerSettings, SettingsError

RETRY_S = 1.0  # after the address book was not to be read
POLL_S = 0.1  # while the last streams end


def run_deployment(
    plan: DeployPlan, flags: Mapping[str, Any], environment: Mapping[str, str], announce: Announce
) -> int:
    """Deploys, and serves until a signal; with `plan.update` only hands the settings over. Returns the exit status.

    Args:
        flags: those of the command line by the settings' keys.
        environment: the variables of this process.
    """
    try:
        settings = ServerSettings.from_sources(flags, environment)
        of_replicas = replica_environment(flags, environment, plan.replica_cpus)
        application = RayApplication(plan)
    except (SettingsError, CannotDeploy) as error:
        announce(f"eagre: {error}")
        return EXIT_USAGE
    set_up_logs(settings.log_level, settings.log_format)
    raise_file_limit()
    try:
        application.connect()
        if plan.update:
            application.find_book()
            application.run(of_replicas, settings, os.getcwd())
            announce(f"Eagre has updated the application {plan.application}")
            return EXIT_OK
        settings = replace(settings, front_key=secrets.token_hex(16))
        application.open_book(settings.front_key or "")
        return asyncio.run(_serve(application, settings, of_replicas, announce))
    except CannotDeploy as error:
        announce(f"eagre: {error}")
        return EXIT_FAILURE
    finally:
        application.disconnect()


async def _serve(
    application: RayApplication, settings: ServerSettings, of_replicas: Mapping[str, str], announce: Announce
) -> int:
    """The front, from its first connection to its last. It listens before a replica is ready, and says so.

    Raises:
        CannotDeploy: Ray gave up on the replicas before they were ready.
    """
    async with Replicas() as replicas:
        try:
            keys = read_keys(settings)
            app = front_application(replicas, settings, keys)
            metrics_app = None if settings.metrics_port is None else front_metrics_application(app)
            listeners = Listeners(settings, keys, app, metrics_app)
            stopped = watch_signals()

            async def reload() -> None:
                await listeners.reload()
                await application.reload_replicas()

            reloading = reload_on_hangup(reload)
            await listeners.open()
        except (KeyFileError, CertificateError, CannotListen) as error:
            announce(f"eagre: {error}")
            return EXIT_USAGE
        following = asyncio.create_task(_follow(application, replicas))
        started = asyncio.create_task(
            asyncio.to_thread(application.run, of_replicas, settings, os.getcwd()), name="start of the replicas"
        )
        started.add_done_callback(lambda task: task.cancelled() or task.exception())  # a signal may come before its end
        try:
            await first_of(started, stopped)
            if not stopped.done():
                await started
                announce(f"Eagre serves {len(replicas)} replicas on Ray; open {listeners.address}/ in a browser")
                await stopped
            log.info("draining", signal=stopped.result(), num_streams=app[FRONT].num_open)
            await _drain(app[FRONT], settings.shutdown_timeout)
        finally:
            following.cancel()
            reloading.cancel()
            await listeners.close()
            await asyncio.to_thread(application.stop)
    return EXIT_OK


async def _follow(application: RayApplication, replicas: Replicas) -> None:
    """Keeps the replicas of the front those that are in the address book."""
    version = -1
    while True:
        try:
            version, addresses = await application.read_book(version)
            replicas.update(addresses)
        except (CannotDeploy, ValueError) as error:
            log.warning("address_book", reason=str(error))
            await asyncio.sleep(RETRY_S)


async def _drain(front: Front, seconds: float) -> None:
    """Refuses new requests, and waits up to `seconds` for those that are being answered."""
    front.is_draining = True
    for _ in range(int(seconds / POLL_S)):
        if not front.num_open:
            break
        await asyncio.sleep(POLL_S)
