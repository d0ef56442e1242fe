from __future__ import annotations

import sys

import pytest

from benchmarks.serving.server_process import ServerFailed, free_port, running_server


def test_a_server_that_does_not_start() -> None:
    with (
        pytest.raises(ServerFailed, match="exited with 3 before it was ready"),
        running_server([sys.executable, "-c", "raise SystemExit(3)"], f"http://127.0.0.1:{free_port()}"),
    ):
        pytest.fail("entered without a server")
