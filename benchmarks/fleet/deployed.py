"""Replicas that `eagre deploy` has placed on a Ray of this machine, and its front."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks.fleet.replicas import FLAGS
from benchmarks.serving.server_process import (
    READY_TIMEOUT,
    ServerFailed,
    eagre_command,
    free_port,
    get,
    running_server,
)

# What a replica reserves of Ray, so that several share a small machine. It computes with one thread whatever this is.
CPUS = "0.25"
POLL_S = 0.2


class Deployment:
    """The replicas as their front knows them."""

    def __init__(self, url: str, count: int) -> None:
        self._url = url
        self.count = count

    def replicas(self) -> dict[str, dict[str, Any]]:
        """What the front tells of those that get requests, by their names.

        Raises:
            OSError: the front takes no requests at the moment.
        """
        told: dict[str, dict[str, Any]] = orjson.loads(get(self._url + "/health"))["replicas"]
        return {name: each for name, each in told.items() if each["state"] == "ready" and not each["is_leaving"]}

    def wait_ready(self, gone: str | None = None) -> dict[str, dict[str, Any]]:
        """`replicas` as soon as there are all of them.

        Args:
            gone: one that is no longer among them by then.

        Raises:
            ServerFailed: they do not come.
        """
        deadline = time.monotonic() + READY_TIMEOUT
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                found = self.replicas()
                if len(found) == self.count and gone not in found:
                    return found
            time.sleep(POLL_S)
        raise ServerFailed(f"there were no {self.count} replicas after {READY_TIMEOUT:g} s")


class DeployedReplica:
    """One of them. Ray puts another one in the place of a replica that ends, which then is meant."""

    def __init__(self, deployment: Deployment, name: str, address: str, beside: set[str]) -> None:
        """Args:
        beside: the names of all replicas, shared by them; whoever replaces one writes its name there.
        """
        self._deployment = deployment
        self._name = name
        self._beside = beside
        self.url = address

    def num_streams(self) -> int:
        """Answers that the server is still giving."""
        health = self._deployment.replicas()[self._name]["health"]
        return int(health["num_streams"])

    def start(self) -> None:
        """Returns when Ray has replaced the server.

        Raises:
            ServerFailed: it has not.
        """
        found = self._deployment.wait_ready(gone=self._name)
        (new,) = set(found) - self._beside
        self._beside.discard(self._name)
        self._beside.add(new)
        self._name, self.url = new, found[new]["address"]

    async def restart(self) -> None:
        """Lets the server end its streams and itself, and returns when Ray has replaced it.

        Raises:
            ServerFailed: it has not.
        """
        os.kill(self._pid(), signal.SIGTERM)
        await asyncio.to_thread(self.start)

    async def kill(self) -> None:
        """Ends the process of the server with SIGKILL."""
        os.kill(self._pid(), signal.SIGKILL)

    def _pid(self) -> int:
        """Linux tells whose environment has the replica's name."""
        mark = f"EAGRE_REPLICA_NAME={self._name}".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    return int(path.parent.name)
        raise ProcessLookupError(f"no process has {mark.decode()}")


@contextlib.contextmanager
def deployed(count: int, flags: Sequence[str]) -> Iterator[tuple[str, list[DeployedReplica]]]:
    """The address of the front and its replicas, on a Ray that ends with the block.

    Raises:
        ServerFailed: they did not start; where Ray is not installed, the command says so.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    placing = ["--replicas", str(count), "--replica-cpus", CPUS]
    serve = eagre_command(port, [*FLAGS, *flags, *placing])
    command = ["env", "EAGRE_THREADS=1", *("deploy" if word == "serve" else word for word in serve)]
    with running_server(command, url):
        deployment = Deployment(url, count)
        found = deployment.wait_ready()
        names = set(found)
        yield url, [DeployedReplica(deployment, name, told["address"], names) for name, told in found.items()]
