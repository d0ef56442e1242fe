"""Replicas that `eagre deploy` has placed on a Ray of this machine, and its router."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks.fleet.replicas import FLAGS, ONE_THREAD
from benchmarks.serving.server_process import READY_TIMEOUT, ServerFailed, ServerProcess, eagre_command, get

# What a replica reserves of Ray, so that several share a small machine. It computes with one thread whatever this is.
CPUS = "0.25"
POLL_S = 0.2


class Deployment:
    """The replicas as their router knows them."""

    def __init__(self, url: str, count: int) -> None:
        self._url = url
        self.count = count

    def replicas(self) -> dict[str, dict[str, Any]]:
        """The router's report of replicas that get requests, by name; raises OSError where it takes none now."""
        found: dict[str, dict[str, Any]] = orjson.loads(get(self._url + "/health"))["replicas"]
        return {name: each for name, each in found.items() if each["state"] == "ready" and not each["is_leaving"]}

    def wait_ready(self, without: str | None = None) -> dict[str, dict[str, Any]]:
        """`replicas` as soon as there are all of them, and one is no longer among them; raises ServerFailed."""
        deadline = time.monotonic() + READY_TIMEOUT
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                found = self.replicas()
                if len(found) == self.count and without not in found:
                    return found
            time.sleep(POLL_S)
        raise ServerFailed(f"there were no {self.count} replicas after {READY_TIMEOUT:g} s")


class DeployedReplica:
    """One of the replicas that share `all_names`, or the one by which Ray has replaced it when it ended."""

    def __init__(self, deployment: Deployment, name: str, address: str, all_names: set[str]) -> None:
        self._deployment = deployment
        self._name = name
        self._all_names = all_names
        self.url = address

    def num_streams(self) -> int:
        return int(self._deployment.replicas()[self._name]["health"]["num_streams"])

    def start(self) -> None:
        """Returns when Ray has replaced the server; raises ServerFailed if it has not."""
        found = self._deployment.wait_ready(without=self._name)
        (new,) = set(found) - self._all_names
        self._all_names.discard(self._name)
        self._all_names.add(new)
        self._name, self.url = new, found[new]["address"]

    def restart(self) -> None:
        os.kill(self._pid(), signal.SIGTERM)
        self.start()

    def kill(self) -> None:
        os.kill(self._pid(), signal.SIGKILL)

    def _pid(self) -> int:
        """Of the process whose environment has the replica's name; Linux only."""
        mark = f"EAGRE_REPLICA_NAME={self._name}".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    return int(path.parent.name)
        raise ProcessLookupError(f"no process has {mark.decode()}")


@contextlib.contextmanager
def deployed(count: int, flags: Sequence[str]) -> Iterator[tuple[str, list[DeployedReplica]]]:
    """The address of the router and its replicas, on a Ray that ends with the block; raises ServerFailed."""

    def command(port: int) -> list[str]:
        serve = eagre_command(port, [*FLAGS, *flags, "--replicas", str(count), "--replica-cpus", CPUS])
        return [*ONE_THREAD, *("deploy" if word == "serve" else word for word in serve)]

    with ServerProcess("deploy", command) as router:
        deployment = Deployment(router.url, count)
        found = deployment.wait_ready()
        names = set(found)
        yield router.url, [DeployedReplica(deployment, name, each["address"], names) for name, each in found.items()]
