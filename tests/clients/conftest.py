"""`eagre serve` with the default model in a process of its own, and what all clients are asked to do with it."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

START_S = 300.0  # the first start fetches the model and compiles
EAGRE = Path(__file__).parents[2] / ".venv" / "bin" / "eagre"


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server: that of EAGRE_URL, or one that is started for these tests."""
    if "EAGRE_URL" in os.environ:
        yield os.environ["EAGRE_URL"]
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    command = os.environ.get("EAGRE_COMMAND", str(EAGRE)).split()
    with log.open("wb") as errors:
        process = subprocess.Popen([*command, "serve", "--port", str(port)], stderr=errors)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_S
        while not _is_ready(address):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait(30)
    assert "internal_error" not in log.read_text()


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(address + "/readiness", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="session")
def v1(url: str) -> str:
    """The base URL of clients of OpenAI's API."""
    return url + "/v1"
