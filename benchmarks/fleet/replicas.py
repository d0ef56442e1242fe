"""Servers and a router in front of them, each in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import orjson

from benchmarks.serving.server_process import RunningServer, eagre_command, free_port, get, running_server

MODEL = "smollm2-135m-instruct"
FLAGS = ("--model", MODEL, "--max-num-seqs", "16", "--max-model-len", "2048")
# Each replica computes with one thread, so that several of them share one machine as they would share several.
THREADS = "EAGRE_THREADS=1"
FRONT_KEY = "a-secret-of-this-fleet"
# In the place of a router's program:
EAGRE = Path("eagre")  # our own front
DEPLOYED = Path("deploy")  # `eagre deploy`: our front, and replicas that Ray Serve has placed
RAY_PROXY = Path("ray-proxy")  # the HTTP proxy of Ray Serve, and an actor of Ray before each replica


class Server(Protocol):
    """What the checks ask of one replica."""

    @property
    def url(self) -> str:
        """`http://host:port` or `unix:/path`, past every front."""
        ...

    def num_streams(self) -> int:
        """Answers that the server is still giving."""
        ...

    def start(self) -> None:
        """Returns when the server that was killed is ready again."""
        ...

    async def restart(self) -> None:
        """Stops the server as an operator does, and returns when it, or the one in its place, is ready."""
        ...

    async def kill(self) -> None:
        """Ends the process with SIGKILL."""
        ...


class Replica:
    """One `eagre serve` with a port of its own, at which it can be started again."""

    def __init__(self, flags: Sequence[str]) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._command = ["env", THREADS, f"EAGRE_FRONT_KEY={FRONT_KEY}", *eagre_command(port, [*FLAGS, *flags])]
        self._running = ExitStack()
        self.pid = 0

    def start(self) -> None:
        """Returns when the server is ready.

        Raises:
            ServerFailed: it was not.
        """
        self.pid = self._running.enter_context(running_server(self._command, self.url)).pid

    def stop(self) -> None:
        """Sends SIGTERM and returns when the process has ended, which it does when its streams have."""
        self._running.close()

    async def restart(self) -> None:
        """Stops and starts the server without blocking the loop.

        Raises:
            ServerFailed: it was not ready again.
        """
        await asyncio.to_thread(self.stop)
        await asyncio.to_thread(self.start)

    async def kill(self) -> None:
        """Ends the process with SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)
        await asyncio.to_thread(self.stop)

    def num_streams(self) -> int:
        """Answers that the server is still giving."""
        count: int = orjson.loads(get(self.url + "/health"))["num_streams"]
        return count


@contextlib.contextmanager
def replicas(count: int, flags: Sequence[str]) -> Iterator[list[Replica]]:
    """`count` servers that are ready, until the block ends.

    Raises:
        ServerFailed: one of them was not ready.
    """
    with ExitStack() as stack:
        servers = [Replica(flags) for _ in range(count)]
        for server in servers:  # one after the other: the first one fills the folder of compiled programs
            stack.callback(server.stop)
            server.start()
        yield servers


@contextlib.contextmanager
def router(program: Path, urls: Sequence[str], policy: str) -> Iterator[RunningServer]:
    """A router in front of the servers at `urls`, until the block ends.

    Args:
        program: `sglang-router` or `vllm-router`, which take the same flags, or `EAGRE` or `RAY_PROXY`.
        policy: `round_robin` or `cache_aware`. Ray's proxy has none of them.

    Raises:
        ServerFailed: it was not ready.
    """
    port, metrics_port = free_port(), free_port()
    command = [
        str(program), *(["launch"] if program.name.startswith("sglang") else []),
        "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics_port), "--policy", policy,
        "--log-level", "error", "--health-check-interval-secs", "1", "--health-failure-threshold", "1",
        "--health-success-threshold", "1", "--worker-urls", *urls,
    ]  # fmt: skip
    if program == EAGRE:
        command = [sys.executable, "-m", "benchmarks.fleet.eagre_front", str(port), FRONT_KEY, policy, *urls]
    if program == RAY_PROXY:
        command = [sys.executable, "-m", "benchmarks.fleet.ray_proxy", str(port), *urls]
    with running_server(command, f"http://127.0.0.1:{port}", "/readiness") as running:
        yield running
