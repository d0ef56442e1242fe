"""Schemathesis makes requests from /openapi.json: none may fail on the server's side, hang, or be answered otherwise.

The engine is the one of the tests, so that thousands of requests take two minutes.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("EAGRE_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
SCHEMATHESIS = shutil.which("st", path=str(Path(sys.executable).parent))


@pytest.fixture(scope="module")
def document() -> Iterator[str]:
    """The address of a server's document."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}/openapi.json"
    with subprocess.Popen([PYTHON, "-m", "benchmarks.fanout.eagre_server", str(port), "1", "512"], cwd=ROOT) as process:
        for _ in range(600):
            try:
                urllib.request.urlopen(address, timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                assert process.poll() is None
                time.sleep(0.1)
        yield address
        process.terminate()


def test_no_request_is_answered_otherwise_than_documented(document: str) -> None:
    assert SCHEMATHESIS is not None
    done = subprocess.run(
        [SCHEMATHESIS, "run", document, "--checks", CHECKS, "--phases", "coverage,fuzzing,stateful",
         "--max-examples", "10", "--request-timeout", "30", "--generation-deterministic", "--no-color"],
        timeout=1800, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:]
