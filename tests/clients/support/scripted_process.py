"""A process of tests.clients.support.scripted_server."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[3]
START_S = 60.0


@contextmanager
def scripted_process(*arguments: str) -> Iterator[str]:
    """The address of a server whose model follows the script."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [ROOT / ".venv" / "bin" / "python", "-m", "tests.clients.support.scripted_server", str(port), *arguments]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        deadline = time.monotonic() + START_S
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/readiness", timeout=5):
                    break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)
