"""What stands before the replicas of a fleet: our front as it chooses or takes turns, and that of `eagre deploy`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import orjson
import pytest

from benchmarks.fleet.checks import CHECKS, checks_of
from benchmarks.fleet.deployed import DeployedReplica, Deployment
from benchmarks.fleet.replicas import DEPLOYED, EAGRE, RAY_PROXY
from server.router.policies import PrefixAffinity, RoundRobin, RoutingPolicy
from server.router.replica import ReplicaState
from server.router.replicas import Replicas

needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="Linux tells a process's environment")


@pytest.mark.parametrize(("policy", "num_chosen"), [(PrefixAffinity(), 1), (RoundRobin(), 3)])
async def test_a_front_that_takes_turns_forgets_prefixes(
    policy: RoutingPolicy, num_chosen: int, tmp_path: Path
) -> None:
    async with Replicas(policy) as replicas:
        for name in "abc":
            replicas.add(name, f"unix:{tmp_path}/{name}").state = ReplicaState.READY
        chosen = []
        for _ in range(6):
            chosen.append(replicas.choose((1, 2, 3)))
            with chosen[-1].track((1, 2, 3)):
                pass
        assert {replica.name: chosen.count(replica) for replica in chosen} == {
            replica.name: 6 // num_chosen for replica in chosen
        }
        assert len(set(chosen)) == num_chosen


def test_only_a_front_that_moves_streams_is_asked_to() -> None:
    assert checks_of(EAGRE, tuple(CHECKS)) == checks_of(DEPLOYED, tuple(CHECKS)) == list(CHECKS)
    assert checks_of(Path("sglang-router"), tuple(CHECKS)) == [name for name in CHECKS if name != "kill"]
    assert checks_of(RAY_PROXY, ("hits", "cuts")) == ["cuts"]


class Health(BaseHTTPRequestHandler):
    replicas: dict[str, Any]

    def do_GET(self) -> None:
        body = orjson.dumps({"replicas": self.replicas})
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def health() -> Iterator[str]:
    Health.replicas = {name: told(name) for name in "ab"}
    with ThreadingHTTPServer(("127.0.0.1", 0), Health) as server:
        Thread(target=server.serve_forever, args=(0.01,)).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def told(name: str, *, is_leaving: bool = False) -> dict[str, Any]:
    return {
        "state": "ready", "is_leaving": is_leaving, "address": f"unix:/{name}", "health": {"num_streams": len(name)},
    }  # fmt: skip


@needs_proc
async def test_a_replica_that_ray_replaces_is_the_new_one(health: str) -> None:
    program = (sys.executable, "-S", "-c", "import time; time.sleep(60)")
    server = await asyncio.create_subprocess_exec(*program, env={**os.environ, "EAGRE_REPLICA_NAME": "a"})
    deployment = Deployment(health, 2)
    names = set(await asyncio.to_thread(deployment.wait_ready))
    first, second = (DeployedReplica(deployment, name, f"unix:/{name}", names) for name in "ab")
    try:
        starting = asyncio.ensure_future(asyncio.to_thread(first.restart))
        assert await server.wait() != 0
        assert not starting.done()
        Health.replicas = {"a": told("a", is_leaving=True), "b": told("b"), "new": told("new")}
        await starting
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()
    assert (first.url, second.url) == ("unix:/new", "unix:/b")
    assert [await asyncio.to_thread(each.num_streams) for each in (first, second)] == [3, 1]
    with pytest.raises(ProcessLookupError, match="EAGRE_REPLICA_NAME=new"):
        first.kill()
