"""`eagre deploy`: a router whose replicas Ray Serve places on the machines of a cluster."""

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from server.cli.process import EXIT_FAILURE, EXIT_OK, EXIT_USAGE, Announce, raise_file_limit
from server.cli.router import run_router
from server.router.ray.application import CannotDeploy, RayApplication
from server.router.ray.plan import DeployPlan
from server.router.ray.replica_environment import replica_environment
from server.startup.logs import set_up_logs
from server.startup.settings import ServerSettings, SettingsError


def run_deployment(
    plan: DeployPlan, flags: Mapping[str, Any], environment: Mapping[str, str], announce: Announce
) -> int:
    """Deploys, and serves until a signal, or with `plan.update` hands the settings over; returns the exit status."""
    try:
        settings = replace(ServerSettings.from_sources(flags, environment), front_key=secrets.token_hex(16))
        of_replicas = replica_environment(flags, environment, plan.replica_cpus)
        application = RayApplication(plan, settings, of_replicas)
    except (SettingsError, CannotDeploy) as error:
        announce(f"eagre: {error}")
        return EXIT_USAGE
    set_up_logs(settings.log_level, settings.log_format)
    raise_file_limit()
    try:
        application.connect()
        if plan.update:
            application.find_book()
            application.deploy()
            announce(f"Eagre has updated the application {plan.application}")
            return EXIT_OK
        application.open_book()
        return asyncio.run(run_router(application, settings, announce))
    except CannotDeploy as error:
        announce(f"eagre: {error}")
        return EXIT_FAILURE
    finally:
        application.disconnect()
