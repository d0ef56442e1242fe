"""Servers that are compared on one machine: how each is started, and how one sleeps while another is measured."""

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

from benchmarks.serving.processor import Disturbance, time_of
from benchmarks.serving.resident_memory import ResidentMemory
from benchmarks.serving.server_process import ROOT, ServerFailed, eagre_command, free_port, running_server, served_model

FIRST_PROMPT = list(range(1000, 1008))  # token ids
FIRST_TOKEN_TIMEOUT = 600.0  # seconds
MAX_SLOT_TOKENS = 1536  # of llama.cpp: prompt and output of one request, unless a load asks for more


@dataclass(frozen=True, slots=True)
class Peer:
    """A server that can be started."""

    name: str
    command: Callable[[int], list[str]]  # makes the command line for a port
    readiness: str  # the path that answers 200 once the server takes requests
    folder: Path = ROOT  # where the command runs


def eagre(model: Path, arguments: Sequence[str]) -> Peer:
    return Peer("Eagre", lambda port: eagre_command(port, ["--model", str(model), *arguments]), "/readiness")


def llama_cpp(
    executable: str, model: Path, num_slots: int, arguments: Sequence[str], slot_tokens: int = MAX_SLOT_TOKENS
) -> Peer:
    """llama.cpp's server; `num_slots` requests are decoded at once, each with its own part of the KV cache."""
    num_threads = str(num_processors())
    options = ["--threads", num_threads, "--threads-batch", num_threads]
    options += ["--parallel", str(num_slots), "--ctx-size", str(num_slots * slot_tokens), "--no-kv-unified"]
    options += ["--cont-batching", "--batch-size", "2048", "--ubatch-size", "512", "--flash-attn", "on"]
    options += ["--offline", "--no-ui", "--log-verbosity", "1", *arguments]

    def command(port: int) -> list[str]:
        return [executable, "--model", str(model), "--host", "127.0.0.1", "--port", str(port), *options]

    return Peer("llama.cpp", command, "/health")


def num_processors() -> int:
    """How many this process, and so whatever it starts, may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    else:
        return os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class PeerServer:
    """A server that runs, asleep unless it is `awake`."""

    name: str
    url: str
    model: str  # its name for clients
    pid: int
    ready_after: float  # seconds from the start of the process to its readiness
    cold_start: float  # seconds from the start of the process to its first token
    others_at_start: float | None  # share of the processors that other processes used in that time, 0 to 1
    memory_at_start: ResidentMemory | None

    @property
    def memory(self) -> ResidentMemory | None:
        return ResidentMemory.of(self.pid)

    @property
    def processor_time(self) -> float | None:
        """Processor seconds since its start, of all its threads; None where nobody tells."""
        return time_of(self.pid)

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
    """Runs the server until the block ends; it has computed one token, and sleeps.

    Raises:
        ServerFailed: it did not become ready, or its first answer is wrong.
    """
    port = free_port()
    disturbance = Disturbance()
    with running_server(peer.command(port), f"http://127.0.0.1:{port}", peer.readiness, peer.folder) as running:
        ready_after = time.perf_counter() - running.started
        model = served_model(running.url)
        compute_one_token(running.url, model)
        cold_start = time.perf_counter() - running.started
        server = PeerServer(
            name=peer.name,
            url=running.url,
            model=model,
            pid=running.pid,
            ready_after=ready_after,
            cold_start=cold_start,
            others_at_start=disturbance.share(),
            memory_at_start=ResidentMemory.of(running.pid),
        )
        os.kill(running.pid, signal.SIGSTOP)
        try:
            yield server
        finally:
            os.kill(running.pid, signal.SIGCONT)  # or it would not hear that it is to end


def compute_one_token(url: str, model: str) -> None:
    """
    Raises:
        ServerFailed: the server did not compute one token after exactly the tokens that it was given.
        OSError: it did not answer.
    """
    body = {"model": model, "prompt": FIRST_PROMPT, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        url + "/v1/completions", orjson.dumps(body), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=FIRST_TOKEN_TIMEOUT) as response:
        usage = orjson.loads(response.read())["usage"]
    if (usage["prompt_tokens"], usage["completion_tokens"]) != (len(FIRST_PROMPT), 1):
        raise ServerFailed(f"the server at {url} was asked for 1 token after {len(FIRST_PROMPT)}, and counts {usage}")
