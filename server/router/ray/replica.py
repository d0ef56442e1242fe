"""The actor that Ray Serve runs for each replica: it starts a server on its machine and reports its health and load."""

import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.router.ray.address_book import RouterInfo
from server.router.ray.autoscaling import BUSY_SLOTS, QUEUED_TOKENS, ReplicaLoad
from server.router.ray.replica_environment import share_of_memory
from server.router.ray.replica_server import ReplicaServer, ServerUnwell, free_port
from server.router.replica import UNIX

BOOK_S = 3.0  # for the address book to answer; Ray gives a health check of a replica 15 seconds
MEMORY = "EAGRE_MEMORY_UTILIZATION"


@dataclass(frozen=True)
class ReplicaSpec:
    """The configuration of an application's replicas; where it changes, Ray replaces them."""

    book: str  # name of the actor that is the address book
    namespace: str  # Ray's, of that actor
    environment: Mapping[str, str]  # the settings of the server
    folder: str  # where relative paths among them begin
    num_slots: int  # requests that a server can run at once
    memory_utilization: float  # as the user has set it
    stop_seconds: float  # for running streams to end
    most_replicas: int
    replica_cpus: float


class EagreReplica:
    """A deployment class of Ray Serve without a single route: no token passes through Ray.

    Ray calls `check_health` every two seconds and replaces the actor if it raises, `record_autoscaling_stats` as often,
    and `__del__` when the replica shall end.
    """

    async def __init__(self, spec: ReplicaSpec) -> None:  # type: ignore[misc]  # Ray awaits it
        """Returns when the server is ready; until then Ray counts the replica as starting. Raises ServerUnwell."""
        import ray
        from ray import serve

        self._spec = spec
        self._id = str(serve.get_replica_context().replica_id.unique_id)
        self._load = ReplicaLoad(0.0, 0.0)
        self._is_stopping = False
        node = ray.get_runtime_context().get_node_id()
        router = RouterInfo(*await self._book().router.remote())
        self._num_reloads: int = await self._book().num_reloads.remote()
        resources = {each["NodeID"]: each.get("Resources", {}) for each in ray.nodes()}.get(node, {})
        memory = share_of_memory(spec.memory_utilization, _most_on_node(spec, resources))
        self._server = ReplicaServer(
            _choose_address(router, node, ray.util.get_node_ip_address()),
            {**spec.environment, MEMORY: str(memory), "EAGRE_REPLICA_NAME": self._id},
            spec.folder,
            spec.num_slots,
            router.key,
        )
        await self._server.wait_ready()
        self._server.exited.add_done_callback(self._exit_with_server)
        await self._register()

    async def check_health(self) -> None:
        """Raises `ServerUnwell` where the server cannot serve."""
        await self._server.check()
        await self._register()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The last load that the server has reported, for `ScaleByQueue`."""
        try:
            self._load = await self._server.load()
        except ServerUnwell as unwell:  # `check_health` decides what follows from it
            print(f"eagre: {unwell}", file=sys.stderr, flush=True)
        return {QUEUED_TOKENS: self._load.queued_tokens, BUSY_SLOTS: self._load.busy_slots}

    async def __del__(self) -> None:
        """Ends the server in order: the router sends it nothing new, and its streams end before it does."""
        if self._is_stopping or not hasattr(self, "_server"):
            return
        self._is_stopping = True
        await self._deregister()
        await self._server.stop(self._spec.stop_seconds)

    def _book(self) -> Any:
        import ray

        return ray.get_actor(self._spec.book, namespace=self._spec.namespace)

    async def _register(self) -> None:
        """Renews the entry in the book, and reads there whether the server shall read its keys again.

        A new router's book counts from another number on, so keys are read once too often and never too seldom.
        """
        import ray

        try:
            async with asyncio.timeout(BOOK_S):
                num_reloads: int = await self._book().register.remote(self._id, self._server.address)
            if num_reloads != self._num_reloads:
                self._num_reloads = num_reloads
                self._server.reload()
        except (ValueError, TimeoutError, ray.exceptions.RayError) as error:
            print(f"eagre: the address book of the front is gone or silent: {error}", file=sys.stderr, flush=True)

    async def _deregister(self) -> None:
        import ray

        try:
            async with asyncio.timeout(BOOK_S):
                await self._book().deregister.remote(self._id)
        except (ValueError, TimeoutError, ray.exceptions.RayError):  # the router is gone
            return

    def _exit_with_server(self, exited: asyncio.Future[int]) -> None:
        """Ends the actor as soon as its server has ended by itself: Ray then starts another one without delay."""
        if not self._is_stopping:
            self._server.remove_socket()
            status = exited.result()
            print(
                f"eagre: the server of replica {self._id} has ended with status {status}", file=sys.stderr, flush=True
            )
            os._exit(1)


def _most_on_node(spec: ReplicaSpec, resources: Mapping[str, float]) -> int:
    """How many replicas Ray may place on a machine with these resources."""
    if spec.replica_cpus <= 0:
        return spec.most_replicas
    fits = int(resources.get("CPU", 1.0) / spec.replica_cpus)
    return max(1, min(spec.most_replicas, fits))


def _choose_address(router: RouterInfo, node: str, node_address: str) -> str:
    """The address of a server on `node`; on the router's machine it is a Unix socket that only its user can open."""
    if node == router.node and os.getuid() == router.user:
        return UNIX + str(Path(tempfile.mkdtemp(prefix="eagre-")) / "replica.sock")
    host = f"[{node_address}]" if ":" in node_address else node_address
    return f"http://{host}:{free_port(node_address)}"
