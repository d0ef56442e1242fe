"""A server in a process of its own, for a benchmark to start, to ask and to stop."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import orjson

ROOT = Path(__file__).parents[2]
EAGRE = "import sys; from server.cli.main import main; sys.exit(main())"  # the console script, installed or not
READY_TIMEOUT = 900.0  # seconds; the first start fetches the model and compiles every shape
STOP_TIMEOUT = 30.0
POLL_INTERVAL = 0.05
_PORTS = range(20_000, 32_768)


class ServerFailed(RuntimeError):
    """The server did not become ready."""


def get(url: str, timeout: float = 5.0) -> bytes:
    """The body of a 200 answer.

    Raises:
        OSError: there was no such answer; urllib's errors are of this kind.
    """
    with urllib.request.urlopen(url, timeout=timeout) as response:
        body: bytes = response.read()
        return body


def free_port() -> int:
    """A port that nobody has.

    It is none of those that Linux gives to connections, and to whoever asks for any port: until the server has it,
    nobody else gets it by chance.
    """
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port


class RunningServer(NamedTuple):
    url: str
    pid: int
    started: float  # time.perf_counter, before there was a process


def eagre_command(port: int, arguments: Sequence[str], program: Sequence[str] = ()) -> list[str]:
    """`eagre serve`, without a line for each request: it keeps the tables readable.

    Args:
        program: what to run in the place of the console script.
    """
    eagre = program or (sys.executable, "-c", EAGRE)
    return [*eagre, "serve", "--host", "127.0.0.1", "--port", str(port), "--log-level", "warning", *arguments]


@contextlib.contextmanager
def started_server(arguments: Sequence[str]) -> Iterator[str]:
    """Runs `eagre serve` with `arguments` on a free port until the block ends; its URL.

    Raises:
        ServerFailed: as in running_server.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with running_server(eagre_command(port, arguments), url):
        yield url


@contextlib.contextmanager
def running_server(
    command: Sequence[str], url: str, readiness: str = "/readiness", folder: Path = ROOT
) -> Iterator[RunningServer]:
    """Runs `command` in `folder` until the block ends; enters the block when the server at `url` says it is ready.

    Args:
        readiness: the path that answers 200 once the server is ready.

    Raises:
        ServerFailed: the server ended before it was ready, or took longer than READY_TIMEOUT.
    """
    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    try:
        deadline = time.monotonic() + READY_TIMEOUT
        while not is_ready(url + readiness):
            if process.poll() is not None:
                raise ServerFailed(f"{shlex.join(command)} exited with {process.returncode} before it was ready")
            if time.monotonic() > deadline:
                raise ServerFailed(f"{shlex.join(command)} was not ready after {READY_TIMEOUT:g} s")
            time.sleep(POLL_INTERVAL)
        yield RunningServer(url, process.pid, started)
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_ready(url: str) -> bool:
    try:
        get(url)
    except OSError:
        return False
    return True


def served_model(url: str) -> str:
    """The name of the first model that the server lists."""
    name: str = orjson.loads(get(url + "/v1/models"))["data"][0]["id"]
    return name
