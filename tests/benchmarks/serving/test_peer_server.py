from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from benchmarks.serving.peer_server import FIRST_PROMPT, Peer, eagre, llama_cpp, num_processors, started_peer
from benchmarks.serving.server_process import ServerFailed, get

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


def tiny(num_added_tokens: int = 0) -> Peer:
    """A server without a model, which may report more prompt tokens than it was given."""
    return Peer("tiny", lambda port: [sys.executable, "-c", SERVER, str(port), str(num_added_tokens)], "/health")


def stops(pid: int) -> bool:
    """Whether the kernel reports the process as stopped (T) within some seconds of the signal."""
    stat = Path("/proc", str(pid), "stat")
    for _ in range(600):
        if stat.read_text().rpartition(")")[2].split()[0] == "T":
            return True
        time.sleep(0.1)
    return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells")
def test_a_peer_runs_only_while_awake_and_ends_with_its_block() -> None:
    with started_peer(tiny()) as server:
        assert (server.name, server.model) == ("tiny", "tiny")
        assert 0 < server.ready_after <= server.cold_start < 60
        assert stops(server.pid)
        with server.awake():
            assert get(server.url + "/health")
        assert stops(server.pid)
        assert server.memory is not None
        assert server.memory.peak > 0
        assert server.processor_time is not None
        assert 0 < server.processor_time < 60
    with pytest.raises(OSError, match="refused"):
        get(server.url + "/health")


def test_it_runs_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "of_the_folder.py").write_text(SERVER)
    command = [sys.executable, "-m", "of_the_folder"]
    with started_peer(Peer("tiny", lambda port: [*command, str(port), "0"], "/health", tmp_path)) as server:
        assert server.model == "tiny"


def test_a_server_that_changes_the_prompt_is_not_compared() -> None:
    with (
        pytest.raises(ServerFailed, match=f"1 token after {len(FIRST_PROMPT)}, and counts .*{len(FIRST_PROMPT) + 1}"),
        started_peer(tiny(num_added_tokens=1)),
    ):
        pytest.fail("entered with a server that adds a token")


def test_commands() -> None:
    command = llama_cpp("llama-server", Path("m.gguf"), 4, ["--mlock"]).command(99)
    assert command[:7] == "llama-server --model m.gguf --host 127.0.0.1 --port 99".split()
    assert command[command.index("--ctx-size") + 1] == str(4 * 1536)
    assert command[command.index("--threads") + 1] == str(num_processors())
    assert command[-1] == "--mlock"
    command = eagre(Path("m.gguf"), ["--max-num-seqs", "4"]).command(99)
    assert command[command.index("--port") + 1] == "99"
    assert command[-4:] == "--model m.gguf --max-num-seqs 4".split()
