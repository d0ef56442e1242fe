"""The replica source of `eagre deploy`: an application of Ray Serve with one deployment, whose replicas are servers."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from server.router.ray.address_book import LONGEST_WAIT_S, AddressBook, Addresses, RouterInfo
from server.router.ray.autoscaling import ScaleByQueue
from server.router.ray.plan import DeployPlan
from server.router.ray.replica import EagreReplica, ReplicaSpec
from server.router.replicas import Replicas, SourceFailed
from server.startup.logs import log
from server.startup.settings import ServerSettings

NAMESPACE = "eagre"
HEALTH_PERIOD_S = 2.0
HEALTH_TIMEOUT_S = 15.0
METRICS_PERIOD_S = 2.0
BOOK_S = LONGEST_WAIT_S + 8.0  # for an answer of the address book, whose machine may be frozen
RETRY_S = 1.0  # after the address book could not be read
LOOK_BACK_S = 10.0  # over which Ray averages the loads of the replicas
AFTER_THE_STREAMS_S = 15.0  # for a server to write its last events and to end
MISSING = "`eagre deploy` needs Ray: pip install 'eagre[ray]' (or make venv EXTRAS=ray)"


class CannotDeploy(SourceFailed):
    """The message says what is missing, or what Ray says."""


class RayApplication:
    """One application in Ray Serve. Methods that are not coroutines block: they are called in threads."""

    def __init__(self, plan: DeployPlan, settings: ServerSettings, environment: Mapping[str, str]) -> None:
        """`environment` has the settings of the replicas' servers. Raises CannotDeploy where Ray is not installed."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no reports to Ray's makers unless the user wants them
        self._address = plan.ray_address or os.environ.get("RAY_ADDRESS")
        if self._address is None:
            # A Ray that is started here demands its token from everyone who joins it, `--update` too; Ray itself stores
            # it for the user. The mode is read when Ray is imported.
            os.environ.setdefault("RAY_AUTH_MODE", "token")
        try:
            import ray
            from ray import serve
        except ImportError as error:
            raise CannotDeploy(MISSING) from error
        self._ray: Any = ray
        self._serve: Any = serve
        self._plan = plan
        self._settings = settings
        self._environment = environment
        self._book: Any = None
        self._following: asyncio.Task[None] | None = None
        self.description = "replicas on Ray"

    def connect(self) -> None:
        """Joins the plan's Ray cluster, or starts one that ends with this process; raises CannotDeploy."""
        plan = self._plan
        address = self._address or ("auto" if plan.update else "local")
        is_own = address == "local"
        options: dict[str, Any] = {"include_dashboard": False} if is_own else {}
        try:
            self._ray.init(address=address, namespace=NAMESPACE, logging_level="warning", **options)
        except Exception as error:  # Ray has no class of its own for a start that takes too long
            raise CannotDeploy(
                f"Ray at {address} cannot be used: {error} (where it wants a token, set RAY_AUTH_MODE=token)"
            ) from error
        has = self._ray.cluster_resources()
        for resource, each in (("CPU", plan.replica_cpus), ("GPU", plan.replica_gpus)):
            if is_own and each * plan.least > has.get(resource, 0):
                raise CannotDeploy(
                    f"{plan.least} replicas with {each:g} {resource} each do not fit on this machine, "
                    f"which has {has.get(resource, 0):g}; --replica-{resource.lower()}s says what each reserves"
                )

    def open_book(self) -> None:
        """Starts the address book of this process; raises CannotDeploy where another one has the application."""
        node = self._ray.get_runtime_context().get_node_id()
        actor = self._ray.remote(AddressBook).options(name=self._book_name, num_cpus=0, max_concurrency=1000)
        try:
            self._book = actor.remote(RouterInfo(node, os.getuid(), self._settings.front_key or ""))
        except ValueError as error:
            raise CannotDeploy(
                f"the application {self._plan.application} is deployed already; --update gives it these settings, "
                "and --application NAME makes another one"
            ) from error

    def find_book(self) -> None:
        """Finds the address book of an application that runs; raises CannotDeploy where there is none."""
        try:
            self._book = self._ray.get_actor(self._book_name, namespace=NAMESPACE)
        except ValueError as error:
            raise CannotDeploy(f"there is no application {self._plan.application} to update in this cluster") from error

    def deploy(self) -> None:
        """Starts the application, or gives one that runs the new settings, by replacing replicas one by one.
        Returns when all are ready.

        Raises CannotDeploy: Ray gave up, for example because a replica ended at every start.
        """
        plan, settings = self._plan, self._settings
        spec = ReplicaSpec(
            book=self._book_name,
            namespace=NAMESPACE,
            environment=dict(self._environment),
            folder=os.getcwd(),
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
            graceful_shutdown_wait_loop_s=0.1,  # Ray sees no open request
            max_surge_percent=plan.max_surge,
            **self._scaling(),
        )
        try:
            self._serve.run(deployment.bind(spec), name=plan.application, route_prefix=None)
        except (RuntimeError, TimeoutError, self._ray.exceptions.RayError) as error:
            raise CannotDeploy(f"Ray Serve did not start the application: {error}") from error

    async def start(self, replicas: Replicas) -> None:
        """Deploys, and makes `replicas` those of the address book from now on."""
        self._following = asyncio.create_task(self._follow_book(replicas))
        await asyncio.to_thread(self.deploy)
        self.description = f"{len(replicas)} replicas on Ray"

    async def reload(self) -> None:
        """Has every replica read its keys again, when it next renews its entry in the address book."""
        await self._ask_book(self._book.request_reload.remote)

    def drain(self) -> None:
        """The replicas end after the router's last stream, by `stop`."""

    async def stop(self) -> None:
        """Deletes the application; returns when its replicas have ended in order."""
        if self._following is not None:
            self._following.cancel()
        with suppress(self._ray.exceptions.RayError, RuntimeError, TimeoutError):
            await asyncio.to_thread(self._serve.delete, self._plan.application)

    def disconnect(self) -> None:
        """Leaves the cluster; one that was started here ends."""
        self._ray.shutdown()

    async def read_book(self, known_version: int) -> Addresses:
        """The addresses, as soon as they differ from those of that version, or after some seconds."""
        return Addresses(*await self._ask_book(lambda: self._book.read.remote(known_version)))

    async def _follow_book(self, replicas: Replicas) -> None:
        version = -1
        while True:
            try:
                version, addresses = await self.read_book(version)
                replicas.update(addresses)
            except (CannotDeploy, ValueError) as error:
                log.warning("address_book", reason=str(error))
                await asyncio.sleep(RETRY_S)

    async def _ask_book(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Raises `CannotDeploy` where the address book is lost, or does not answer within `BOOK_S`."""
        try:
            async with asyncio.timeout(BOOK_S):
                return await ask()
        except (self._ray.exceptions.RayError, TimeoutError) as error:
            raise CannotDeploy(f"the address book cannot be reached: {str(error) or 'it is silent'}") from error

    @property
    def _book_name(self) -> str:
        return f"{self._plan.application}-addresses"

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
