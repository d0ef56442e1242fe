from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from benchmarks.serving.alternation import FIRST_PROMPT, started
from benchmarks.serving.resources import time_of
from benchmarks.serving.server_process import ServerFailed, ServerProcess, get

SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({"data": [{"id": "tiny"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        length = len(body["prompt"]) + int(sys.argv[2])
        self.answer({"usage": {"prompt_tokens": length, "completion_tokens": body["max_tokens"]}})

    def answer(self, body):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_):
        pass

HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def tiny(num_added_tokens: int = 0) -> ServerProcess:
    """A server without a model, which may report more prompt tokens than it was given."""
    added = str(num_added_tokens)
    return ServerProcess("tiny", lambda port: [sys.executable, "-c", SERVER, str(port), added], readiness="/health")


def stops(pid: int) -> bool:
    """Whether the kernel reports the process as stopped (T) within some seconds of the signal."""
    stat = Path("/proc", str(pid), "stat")
    for _ in range(600):
        if stat.read_text().rpartition(")")[2].split()[0] == "T":
            return True
        time.sleep(0.1)
    return False


def test_a_server_that_does_not_start() -> None:
    server = ServerProcess("broken", lambda port: [sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(ServerFailed, match="exited with 3 before it was ready"), server:
        pytest.fail("entered without a server")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux has /proc")
def test_a_server_under_test_runs_only_while_it_is_measured_and_ends_with_its_block() -> None:
    with started(tiny()) as server:
        assert server.process is not None
        assert server.at_start is not None
        assert (server.process.name, server.model) == ("tiny", "tiny")
        figures = server.at_start.figures
        assert 0 < figures["ready, s"] <= figures["cold start, s"] < 60
        assert figures["RSS MiB start"] > 0
        pid = server.process.pid
        assert stops(pid)
        with server.running():
            assert get(server.url + "/health")
        assert stops(pid)
        assert (server.peak_memory() or 0) > 0
        assert 0 < (server.processor_time() or 0) < 60
    with pytest.raises(OSError, match="refused"):
        get(server.url + "/health")
    assert time_of(pid) is None


def test_it_is_killed_and_started_again_on_its_port() -> None:
    with tiny() as server:
        first = server.pid
        server.kill()
        with pytest.raises(OSError, match="refused"):
            get(server.url + "/health")
        server.start()
        assert server.pid != first
        assert get(server.url + "/health")


def test_it_runs_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "of_the_folder.py").write_text(SERVER)
    command = [sys.executable, "-m", "of_the_folder"]
    server = ServerProcess("tiny", lambda port: [*command, str(port), "0"], readiness="/health", folder=tmp_path)
    with started(server) as running:
        assert running.model == "tiny"


def test_a_server_that_changes_the_prompt_is_not_compared() -> None:
    with (
        pytest.raises(ServerFailed, match=f"1 token after {len(FIRST_PROMPT)}, and counts .*{len(FIRST_PROMPT) + 1}"),
        started(tiny(num_added_tokens=1)),
    ):
        pytest.fail("entered with a server that adds a token")


def test_the_command_of_eagre_serve() -> None:
    server = ServerProcess.eagre(["--max-num-seqs", "4"], prefix=["nice"])
    assert server.command[0] == "nice"
    assert server.command[server.command.index("--port") + 1] == server.url.rpartition(":")[2]
    assert server.command[-2:] == ["--max-num-seqs", "4"]
