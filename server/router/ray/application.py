"""The application of Ray Serve: one deployment, whose replicas each place a server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from server.router.ray.address_book import LONGEST_WAIT_S, AddressBook, Addresses, Front
from server.router.ray.autoscaling import ScaleByQueue
from server.router.ray.plan import DeployPlan
from server.router.ray.replica import EagreReplica, ReplicaSpec
from server.startup.settings import ServerSettings

NAMESPACE = "eagre"
HEALTH_PERIOD_S = 2.0
HEALTH_TIMEOUT_S = 15.0
METRICS_PERIOD_S = 2.0
BOOK_S = LONGEST_WAIT_S + 8.0  # for an answer of the address book, whose machine may be frozen
LOOK_BACK_S = 10.0  # over which Ray averages what the replicas tell
AFTER_THE_STREAMS_S = 15.0  # for the last words of a server and the end of its process
MISSING = "`eagre deploy` needs Ray: pip install 'eagre[ray]' (or make venv EXTRAS=ray)"


class CannotDeploy(Exception):
    """The message says what is missing, or what Ray says."""


class RayApplication:
    """One application in Ray Serve. Its methods block; they are called outside the asyncio loop."""

    def __init__(self, plan: DeployPlan) -> None:
        """
        Raises:
            CannotDeploy: Ray is not installed.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray tells its makers nothing unless somebody wants it
        self._address = plan.ray_address or os.environ.get("RAY_ADDRESS")
        if self._address is None:
            # Ray on this machine wants its token of everybody who joins it, `--update` too. Ray itself keeps it for the
            # user. The mode is read when Ray is imported.
            os.environ.setdefault("RAY_AUTH_MODE", "token")
        try:
            import ray
            from ray import serve
        except ImportError as error:
            raise CannotDeploy(MISSING) from error
        self._ray: Any = ray
        self._serve: Any = serve
        self._plan = plan
        self._is_own_ray = False
        self._book: Any = None

    def connect(self) -> None:
        """Joins the Ray cluster that the plan names, or starts one on this machine that ends with this process.

        Raises:
            CannotDeploy: there is no such cluster, or this machine has not the cores for all replicas.
        """
        plan = self._plan
        address = self._address or ("auto" if plan.update else "local")
        self._is_own_ray = address == "local"
        options: dict[str, Any] = {"include_dashboard": False} if self._is_own_ray else {}
        try:
            self._ray.init(address=address, namespace=NAMESPACE, logging_level="warning", **options)
        except Exception as error:  # Ray has no class of its own for a start that takes too long
            raise CannotDeploy(
                f"Ray at {address} cannot be used: {error} (where it wants a token, set RAY_AUTH_MODE=token)"
            ) from error
        has = self._ray.cluster_resources()
        for resource, each in (("CPU", plan.replica_cpus), ("GPU", plan.replica_gpus)):
            if self._is_own_ray and each * plan.least > has.get(resource, 0):
                raise CannotDeploy(
                    f"{plan.least} replicas with {each:g} {resource} each do not fit on this machine, "
                    f"which has {has.get(resource, 0):g}; --replica-{resource.lower()}s says what each reserves"
                )

    def open_book(self, front_key: str) -> None:
        """Makes the address book, which lives as long as this process.

        Raises:
            CannotDeploy: another process is the front of this application.
        """
        name = book_name(self._plan.application)
        node = self._ray.get_runtime_context().get_node_id()
        actor = self._ray.remote(AddressBook).options(name=name, num_cpus=0, max_concurrency=1000)
        try:
            self._book = actor.remote(Front(node, os.getuid(), front_key))
        except ValueError as error:
            raise CannotDeploy(
                f"the application {self._plan.application} is deployed already; --update gives it these settings, "
                "and --application NAME makes another one"
            ) from error

    def find_book(self) -> None:
        """
        Raises:
            CannotDeploy: there is no such application.
        """
        try:
            self._book = self._ray.get_actor(book_name(self._plan.application), namespace=NAMESPACE)
        except ValueError as error:
            raise CannotDeploy(f"there is no application {self._plan.application} to update in this cluster") from error

    def run(self, environment: Mapping[str, str], settings: ServerSettings, folder: str) -> None:
        """Starts the application, or gives one that runs its new settings: Ray replaces the replicas one after the
        other. Returns when all are ready.

        Args:
            environment: the settings of the replicas' servers.
            settings: the same, read.
            folder: where relative paths among them begin.

        Raises:
            CannotDeploy: Ray gave up, for example because a replica ended at every start.
        """
        plan = self._plan
        spec = ReplicaSpec(
            book=book_name(plan.application),
            namespace=NAMESPACE,
            environment=dict(environment),
            folder=folder,
            num_slots=settings.engine.max_num_seqs,
            memory_utilization=settings.engine.memory_utilization,
            stop_seconds=settings.shutdown_timeout + AFTER_THE_STREAMS_S / 2,
            most_replicas=plan.most,
            replica_cpus=plan.replica_cpus,
        )
        if not self._serve.status().proxies:
            self._serve.start(proxy_location="Disabled")
        deployment = self._serve.deployment(
            EagreReplica,
            name="replica",
            ray_actor_options={"num_cpus": plan.replica_cpus, "num_gpus": plan.replica_gpus},
            health_check_period_s=HEALTH_PERIOD_S,
            health_check_timeout_s=HEALTH_TIMEOUT_S,
            graceful_shutdown_timeout_s=settings.shutdown_timeout + AFTER_THE_STREAMS_S,
            graceful_shutdown_wait_loop_s=0.1,  # no request is open in Ray's eyes
            max_surge_percent=plan.max_surge,
            **self._scaling(),
        )
        try:
            self._serve.run(deployment.bind(spec), name=plan.application, route_prefix=None)
        except (RuntimeError, TimeoutError, self._ray.exceptions.RayError) as error:
            raise CannotDeploy(f"Ray Serve did not start the application: {error}") from error

    async def read_book(self, known_version: int) -> Addresses:
        """The addresses, as soon as they differ from those of that version, or after some seconds.

        Raises:
            CannotDeploy: the book is lost, or does not answer within `BOOK_S`.
        """
        try:
            async with asyncio.timeout(BOOK_S):
                return Addresses(*await self._book.read.remote(known_version))
        except (self._ray.exceptions.RayError, TimeoutError) as error:
            raise CannotDeploy(f"the address book cannot be read: {str(error) or 'it is silent'}") from error

    async def reload_replicas(self) -> None:
        """Has the servers of all replicas read their keys again, which they do within seconds.

        Raises:
            CannotDeploy: the book is lost, or does not answer within `BOOK_S`.
        """
        try:
            async with asyncio.timeout(BOOK_S):
                await self._book.ask_reload.remote()
        except (self._ray.exceptions.RayError, TimeoutError) as error:
            raise CannotDeploy(
                f"the replicas cannot be told to read their keys again: {str(error) or 'the address book is silent'}"
            ) from error

    def stop(self) -> None:
        """Ends the application; returns when its replicas have ended in order."""
        with suppress(self._ray.exceptions.RayError, RuntimeError, TimeoutError):
            self._serve.delete(self._plan.application)

    def disconnect(self) -> None:
        """Leaves the cluster; one that was started here ends."""
        self._ray.shutdown()

    def _scaling(self) -> dict[str, Any]:
        plan = self._plan
        if not plan.is_autoscaled:
            return {"num_replicas": plan.least}
        policy = {"policy_function": ScaleByQueue, "policy_kwargs": {"target_queued_tokens": plan.target_queued_tokens}}
        return {
            "autoscaling_config": {
                "min_replicas": plan.least,
                "initial_replicas": plan.least,
                "max_replicas": plan.most,
                "upscale_delay_s": plan.upscale_delay,
                "downscale_delay_s": plan.downscale_delay,
                "metrics_interval_s": METRICS_PERIOD_S,
                "look_back_period_s": LOOK_BACK_S,
                "policy": policy,
            }
        }


def book_name(application: str) -> str:
    """Of the actor that holds the addresses of an application's replicas."""
    return f"{application}-addresses"
