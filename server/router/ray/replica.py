"""What Ray Serve runs for each replica: an actor that places a server on its machine and answers for it."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.router.ray.address_book import Front
from server.router.ray.autoscaling import BUSY_SLOTS, QUEUED_TOKENS, ReplicaLoad
from server.router.ray.placed_server import PlacedServer, ServerUnwell, free_port
from server.router.ray.replica_environment import share_of_memory
from server.router.replica import UNIX

ENTER_S = 3.0  # for the address book to answer; Ray gives a look at the health of a replica 15 seconds
MEMORY = "EAGRE_MEMORY_UTILIZATION"


@dataclass(frozen=True)
class ReplicaSpec:
    """What every replica of an application has to know; another spec makes other replicas."""

    book: str  # name of the actor that is the address book
    namespace: str  # Ray's, of that actor
    environment: Mapping[str, str]  # the settings of the server
    folder: str  # where relative paths among them begin
    num_slots: int  # requests that a server can run at once
    memory_utilization: float  # as asked for
    stop_seconds: float  # for running streams to end
    most_replicas: int
    replica_cpus: float


class EagreReplica:
    """A deployment class of Ray Serve without a single route: no token passes through Ray.

    Ray calls `check_health` every two seconds and replaces the actor if it raises, `record_autoscaling_stats` as often,
    and `__del__` when the replica shall go.
    """

    async def __init__(self, spec: ReplicaSpec) -> None:  # type: ignore[misc]  # Ray awaits it
        """Returns when the server is ready; until then Ray counts the replica as starting.

        Raises:
            ServerUnwell: the server has ended before it was ready.
        """
        import ray
        from ray import serve

        self._spec = spec
        self._id = str(serve.get_replica_context().replica_id.unique_id)
        self._load = ReplicaLoad(0.0, 0.0)
        self._is_stopping = False
        node = ray.get_runtime_context().get_node_id()
        front = Front(*await self._book().front.remote())
        self._num_reloads: int = await self._book().num_reloads.remote()
        num_beside = _most_on_node(spec, {n["NodeID"]: n.get("Resources", {}) for n in ray.nodes()}.get(node, {}))
        memory = share_of_memory(spec.memory_utilization, num_beside)
        self._server = PlacedServer(
            _address(front, node, ray.util.get_node_ip_address()),
            {**spec.environment, MEMORY: str(memory), "EAGRE_REPLICA_NAME": self._id},
            spec.folder,
            spec.num_slots,
            front.key,
        )
        await self._server.wait_ready()
        threading.Thread(target=self._end_with_server, daemon=True).start()
        await self._enter()

    async def check_health(self) -> None:
        """
        Raises:
            ServerUnwell: the server cannot serve.
        """
        await self._server.check()
        await self._enter()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What `ScaleByQueue` reads: the last load that the server has told."""
        try:
            self._load = await self._server.load()
        except ServerUnwell as unwell:  # that is the affair of `check_health`
            print(f"eagre: {unwell}", file=sys.stderr, flush=True)
        return {QUEUED_TOKENS: self._load.queued_tokens, BUSY_SLOTS: self._load.busy_slots}

    async def __del__(self) -> None:
        """Ends the server in order: the front sends nothing new to it, and its streams end before it does."""
        if self._is_stopping or not hasattr(self, "_server"):
            return
        self._is_stopping = True
        await self._leave()
        await self._server.stop(self._spec.stop_seconds)

    def _book(self) -> Any:
        import ray

        return ray.get_actor(self._spec.book, namespace=self._spec.namespace)

    async def _enter(self) -> None:
        """Renews the entry in the book, and reads there whether the server shall read its keys again.

        A book that is lost is replaced by the next front; until then nobody reads. The new one counts from
        another number on, so keys are read once too often and never too seldom.
        """
        import ray

        try:
            async with asyncio.timeout(ENTER_S):
                num_reloads: int = await self._book().enter.remote(self._id, self._server.address)
            if num_reloads != self._num_reloads:
                self._num_reloads = num_reloads
                self._server.reload()
        except (ValueError, TimeoutError, ray.exceptions.RayError) as error:
            print(f"eagre: the address book of the front is gone or silent: {error}", file=sys.stderr, flush=True)

    async def _leave(self) -> None:
        import ray

        try:
            async with asyncio.timeout(ENTER_S):
                await self._book().strike.remote(self._id)
        except (ValueError, TimeoutError, ray.exceptions.RayError):  # nobody reads the book any more
            return

    def _end_with_server(self) -> None:
        """Ends the actor as soon as its server has ended by itself: Ray then starts another one without delay."""
        status = self._server.wait_end()
        if not self._is_stopping:
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


def _address(front: Front, node: str, node_address: str) -> str:
    """Where a server on the machine `node` listens: beside its front on a socket that only their user can open."""
    if node == front.node and os.getuid() == front.user:
        return UNIX + str(Path(tempfile.mkdtemp(prefix="eagre-")) / "replica.sock")
    host = f"[{node_address}]" if ":" in node_address else node_address
    return f"http://{host}:{free_port(node_address)}"
