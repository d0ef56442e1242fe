"""`eagre serve` in a process of its own, on the tiny model, which a test may kill, freeze or starve."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.serving.server_process import free_port
from tests.patience import PATIENCE_S, PROCESS_S

# One slot, so that few programs are compiled.
SETTINGS = "--dtype float32 --max-num-seqs 1 --max-num-batched-tokens 65 --num-pages 160 --seed 0".split()

# A step takes 10 ms at least, so that a stream of the tiny model lasts for seconds. SIGUSR1 freezes the engine thread
# in its next step for ever. `limit`, if not 0, is the size in bytes beyond which no file of the process can grow.
# Processes that have compiled a grammar end soon, because a test waits for their end.
SERVE = """
import resource, signal, sys, threading, time
from engine.step.device_runner import DeviceRunner
from server.cli import main as cli
from server.structured_output import sandboxed_compiler

sandboxed_compiler.IDLE_SECONDS = 1.0
limit = int(sys.argv[1])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
is_frozen = threading.Event()

def slowed(dispatch, num_steps):
    def slow_dispatch(runner, planned):
        if is_frozen.is_set():
            threading.Event().wait()
        time.sleep(0.01 * num_steps(planned))
        return dispatch(runner, planned)

    return slow_dispatch

DeviceRunner.dispatch = slowed(DeviceRunner.dispatch, lambda plan: 1)
DeviceRunner.dispatch_burst = slowed(DeviceRunner.dispatch_burst, len)
signal.signal(signal.SIGUSR1, lambda *_: is_frozen.set())
sys.exit(cli.main(sys.argv[2:]))
"""


@dataclass
class ServerProcess(AbstractContextManager["ServerProcess"]):
    """One process; leaving it as a context kills it."""

    model: Path
    cache: Path  # the user's cache folder
    arguments: tuple[str, ...] = ()
    file_limit: int = 0

    def __post_init__(self) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-c", SERVE, str(self.file_limit), "serve", "--port", str(port), "--model"]
        self._log = self.cache.parent / f"{port}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, str(self.model), *SETTINGS, *self.arguments],
                stdin=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, "EAGRE_CACHE": str(self.cache)},
            )

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Fails if the process ends first, or if it takes too long."""
        deadline = time.monotonic() + PROCESS_S
        while not holds():
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.01)

    def wait_ready(self) -> None:
        self.wait_until(self._is_ready)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, seconds: float = PATIENCE_S) -> int:
        """The exit status; negative is the signal that ended it."""
        return self._process.wait(seconds)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + "/readiness", timeout=PATIENCE_S):
                return True
        except (urllib.error.URLError, OSError):
            return False
