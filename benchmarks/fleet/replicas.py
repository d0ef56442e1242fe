"""Replicas and a router in front of them, each in a process of its own."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import orjson

from benchmarks.serving.server_process import ServerProcess, free_port, get
from server.startup.settings import DEFAULT_MODEL

FLAGS = ("--model", DEFAULT_MODEL, "--max-num-seqs", "16", "--max-model-len", "2048")
# Each replica computes with one thread, so that several of them share one machine as they would share several.
ONE_THREAD = ("env", "EAGRE_THREADS=1")
FRONT_KEY = "a-secret-of-this-fleet"
# Instead of a router's program:
EAGRE = Path("eagre")  # our own router
DEPLOYED = Path("deploy")  # `eagre deploy`: our router, and replicas that Ray Serve has placed
RAY_PROXY = Path("ray-proxy")  # the HTTP proxy of Ray Serve, and an actor of Ray before each replica


class Replica(ServerProcess):
    """One `eagre serve` with a port of its own, at which it can be started again."""

    def restart(self) -> None:
        self.stop()
        self.start()

    def num_streams(self) -> int:
        """Answers that the server is still giving."""
        count: int = orjson.loads(get(self.url + "/health"))["num_streams"]
        return count


@contextlib.contextmanager
def replicas(count: int, flags: Sequence[str]) -> Iterator[list[Replica]]:
    """`count` servers that are ready, until the block ends; raises ServerFailed."""
    prefix = (*ONE_THREAD, f"EAGRE_FRONT_KEY={FRONT_KEY}")
    with ExitStack() as stack:
        # One after the other: the first one fills the folder of compiled programs.
        yield [stack.enter_context(Replica.eagre([*FLAGS, *flags], prefix=prefix)) for _ in range(count)]


def router(program: Path, urls: Sequence[str], policy: str) -> ServerProcess:
    """A router in front of the servers at `urls`, not started yet; Ray's proxy has no policies."""

    def command(port: int) -> list[str]:
        if program == EAGRE:
            return [sys.executable, "-m", "benchmarks.fleet.router_process", str(port), FRONT_KEY, policy, *urls]
        if program == RAY_PROXY:
            return [sys.executable, "-m", "benchmarks.fleet.ray_proxy", str(port), *urls]
        return [
            str(program), *(["launch"] if program.name.startswith("sglang") else []),
            "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port()), "--policy", policy,
            "--log-level", "error", "--health-check-interval-secs", "1", "--health-failure-threshold", "1",
            "--health-success-threshold", "1", "--worker-urls", *urls,
        ]  # fmt: skip

    return ServerProcess(program.name, command)
