"""The command that compares embeddings of servers, with stand-ins for all of them."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from random import Random

import orjson
import pytest

from benchmarks import embeddings
from benchmarks.embeddings import EmbeddingServer, draw_texts, words_of_the_documentation
from benchmarks.serving.server_process import ServerFailed
from benchmarks.serving.table import OTHERS

Embed = Callable[[str], list[float]]


def by_length(text: str) -> list[float]:
    return [float(len(text)), 1.0]


def by_first_letter(text: str) -> list[float]:
    return [1.0, float(ord(text[0]))]


@contextlib.contextmanager
def answering(embed: Embed, fragment: str = "") -> Iterator[EmbeddingServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
            data = [{"index": index, "embedding": embed(text)} for index, text in enumerate(texts)]
            content = json.dumps({"data": data}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield EmbeddingServer(f"http://127.0.0.1:{server.server_port}{fragment}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def two(second: Embed) -> Iterator[dict[str, EmbeddingServer]]:
    with answering(by_length) as eagre, answering(second) as other:
        yield {"Eagre": eagre, "other": other}


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(embeddings, "running", lambda _: two(by_length))
    file = tmp_path / "figures.json"
    assert embeddings.main(f"--texts 1 3 --requests 2 --rounds 1 --json {file}".split()) == 0
    table = orjson.loads(file.read_bytes())["table"]
    assert [(row["load"], row["figure"]) for row in table if row["figure"] != OTHERS] == [
        (load, figure) for load in ("1 texts", "3 texts") for figure in ("texts/s", "request p50, ms")
    ]
    assert all(row["ratios"].keys() == {"Eagre/other"} for row in table)
    assert capsys.readouterr().out.split()[0] == "load"


def test_the_processor_time_of_a_server_is_counted_where_its_process_is_named() -> None:
    with answering(by_length) as unknown, answering(by_length, f"#{os.getpid()}") as known:
        assert "texts/CPU-s" not in unknown.measure([["a"], ["b"]])[1]
        assert known.measure([["a"], ["b"]])[1]["texts/CPU-s"] > 0


def test_other_vectors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "running", lambda _: two(by_first_letter))
    with pytest.raises(ServerFailed, match="the vectors of other are up to"):
        embeddings.main("--texts 1 --requests 1 --rounds 1".split())


def test_texts_are_words_of_the_documentation() -> None:
    words = words_of_the_documentation()
    (first, second), again = (draw_texts(Random(seed), words, 2) for seed in (5, 5))
    assert [first, second] == again
    assert first != second
    assert 8 <= len(first.split()) <= 48
    assert set(first.split()) <= set(words)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--llama-server nowhere/llama-server", "--llama-server: there is no executable nowhere/llama-server"),
        ("--llama-server sh", "--llama-server and --llama-model belong together"),
        ("--server http://there", "--server: http://there is no NAME=http://…"),
        ("--texts 0", "--texts: must be at least 1, not 0"),
    ],
)
def test_what_cannot_be_compared(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        embeddings.main(arguments.split())
    assert message in capsys.readouterr().err
