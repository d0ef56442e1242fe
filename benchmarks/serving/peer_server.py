"""Starts the servers that are compared on one machine, and stops each while another one is measured."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from benchmarks.serving.processor import Disturbance
from benchmarks.serving.resident_memory import ResidentMemory
from benchmarks.serving.server_process import ServerFailed, eagre_command, free_port, running_server, served_model

FIRST_PROMPT = list(range(1000, 1008))  # token ids
FIRST_TOKEN_TIMEOUT = 600.0  # seconds
MAX_SLOT_TOKENS = 1536  # tokens of prompt and output of one request to llama.cpp


@dataclass(frozen=True, slots=True)
class Peer:
    """A server that can be started."""

    name: str
    command: Callable[[int], list[str]]  # makes the command line for a port
    readiness: str  # the path that answers 200 once the server takes requests


def eagre(model: Path, arguments: Sequence[str]) -> Peer:
    return Peer("Eagre", lambda port: eagre_command(port, ["--model", str(model), *arguments]), "/readiness")


def llama_cpp(executable: str, model: Path, num_slots: int, arguments: Sequence[str]) -> Peer:
    """The server of llama.cpp. It decodes `num_slots` requests at once, each with its own part of the KV cache."""
    num_threads = str(num_processors())
    options = ["--threads", num_threads, "--threads-batch", num_threads]
    options += ["--parallel", str(num_slots), "--ctx-size", str(num_slots * MAX_SLOT_TOKENS), "--no-kv-unified"]
    options += ["--cont-batching", "--batch-size", "2048", "--ubatch-size", "512", "--flash-attn", "on"]
    options += ["--offline", "--no-ui", "--log-verbosity", "1", *arguments]

    def command(port: int) -> list[str]:
        return [executable, "--model", str(model), "--host", "127.0.0.1", "--port", str(port), *options]

    return Peer("llama.cpp", command, "/health")


def num_processors() -> int:
    """The number of processors that this process and its children may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    else:
        return os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class PeerServer:
    """A started server that is stopped unless it is `awake`."""

    name: str
    url: str
    model: str  # its name for clients
    pid: int
    cold_start: float  # seconds from the start of the process to its first token
    others_at_start: float | None  # share of the processors that other processes used in that time, 0 to 1
    memory_at_start: ResidentMemory | None

    @property
    def memory(self) -> ResidentMemory | None:
        return ResidentMemory.of(self.pid)

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Lets the server run within the block. Outside such blocks the kernel gives its threads no time."""
        os.kill(self.pid, signal.SIGCONT)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGSTOP)


@contextlib.contextmanager
def started_peer(peer: Peer) -> Iterator[PeerServer]:
    """Runs the server until the block ends. When the block begins, it has computed one token and is stopped.

    Raises:
        ServerFailed: the server did not become ready, or its first answer is wrong.
    """
    port = free_port()
    disturbance = Disturbance()
    with running_server(peer.command(port), f"http://127.0.0.1:{port}", peer.readiness) as running:
        model = served_model(running.url)
        compute_one_token(running.url, model)
        cold_start = time.perf_counter() - running.started
        server = PeerServer(
            name=peer.name,
            url=running.url,
            model=model,
            pid=running.pid,
            cold_start=cold_start,
            others_at_start=disturbance.share(),
            memory_at_start=ResidentMemory.of(running.pid),
        )
        os.kill(running.pid, signal.SIGSTOP)
        try:
            yield server
        finally:
            os.kill(running.pid, signal.SIGCONT)  # or it would not get the signal to end


def compute_one_token(url: str, model: str) -> None:
    """Lets the server compute one token.

    Raises:
        ServerFailed: the server did not compute one token for exactly the given prompt.
        OSError: the server did not answer.
    """
    body = {"model": model, "prompt": FIRST_PROMPT, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        url + "/v1/completions", orjson.dumps(body), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=FIRST_TOKEN_TIMEOUT) as response:
        usage = orjson.loads(response.read())["usage"]
    if (usage["prompt_tokens"], usage["completion_tokens"]) != (len(FIRST_PROMPT), 1):
        raise ServerFailed(f"the server at {url} was asked for 1 token after {len(FIRST_PROMPT)}, and counts {usage}")
