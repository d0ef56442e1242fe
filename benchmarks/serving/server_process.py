"""Supervised server processes: started on a free port, paused, stopped, killed, and started again there."""

import contextlib
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

import orjson

ROOT = Path(__file__).parents[2]
EAGRE = "import sys; from server.cli.main import main; sys.exit(main())"  # the console script, installed or not
READY_TIMEOUT = 900.0  # seconds; the first start fetches the model and compiles every shape
STOP_TIMEOUT = 30.0
POLL_INTERVAL = 0.05
_PORTS = range(20_000, 32_768)


class ServerFailed(RuntimeError):
    """A server did not become ready, or did not answer as it must."""


def get(url: str, timeout: float = 5.0) -> bytes:
    """The body of a response with status 200; raises OSError, as urllib's errors are."""
    with urllib.request.urlopen(url, timeout=timeout) as response:
        body: bytes = response.read()
        return body


def free_port() -> int:
    """A free port outside the range of ephemeral ports, so that no other process gets it by chance meanwhile."""
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port


def eagre_command(port: int, arguments: Sequence[str], program: Sequence[str] = ()) -> list[str]:
    """The command line of `eagre serve` without an access log, run by `program` instead of the console script."""
    eagre = program or (sys.executable, "-c", EAGRE)
    return [*eagre, "serve", "--host", "127.0.0.1", "--port", str(port), "--log-level", "warning", *arguments]


class ServerProcess:
    """A server on a port of its own. As a context manager it runs until the block ends.

    `command` makes the command line for a port; the path `readiness` responds with 200 once the server takes requests.
    """

    def __init__(
        self, name: str, command: Callable[[int], Sequence[str]], *, readiness: str = "/readiness", folder: Path = ROOT
    ) -> None:
        port = free_port()
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self.command = list(command(port))
        self.started = 0.0  # time.perf_counter, before there was a process
        self._readiness = self.url + readiness
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def eagre(cls, arguments: Sequence[str], *, prefix: Sequence[str] = (), program: Sequence[str] = ()) -> Self:
        """`eagre serve` of this checkout, behind a prefix such as `nice`."""
        return cls("Eagre", lambda port: [*prefix, *eagre_command(port, arguments, program)])

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        """Returns when the server is ready; raises ServerFailed if it exited, or took longer than READY_TIMEOUT."""
        self.started = time.perf_counter()
        self._process = subprocess.Popen(self.command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self.stop()
            raise
        return self

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + READY_TIMEOUT
        while not responds(self._readiness):
            if process.poll() is not None:
                raise ServerFailed(f"{shlex.join(self.command)} exited with {process.returncode} before it was ready")
            if time.monotonic() > deadline:
                raise ServerFailed(f"{shlex.join(self.command)} was not ready after {READY_TIMEOUT:g} s")
            time.sleep(POLL_INTERVAL)

    def stop(self) -> None:
        """Sends SIGTERM and returns when the process has ended, which it does when its streams have."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Stops all threads of the process (SIGSTOP): it keeps its memory and takes no processor time."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


@contextlib.contextmanager
def started_server(arguments: Sequence[str]) -> Iterator[str]:
    """Runs `eagre serve` with `arguments` until the block ends, and yields its URL; raises ServerFailed."""
    with ServerProcess.eagre(arguments) as server:
        yield server.url


def responds(url: str) -> bool:
    try:
        get(url)
    except OSError:
        return False
    return True


def served_model(url: str) -> str:
    name: str = orjson.loads(get(url + "/v1/models"))["data"][0]["id"]
    return name
