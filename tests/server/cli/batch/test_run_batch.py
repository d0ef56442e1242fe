"""`eagre run-batch` over a fake engine: every request has its answer, and an interrupted run goes on."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from server.cli import main as cli
from server.cli.batch import run_batch
from server.cli.batch.answer_file import AnswerFile
from server.cli.client.errors import NoAnswer
from server.startup.model_loader import LoadedModel
from server.startup.settings import ServerSettings
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import FakeTextModel
from tests.server.http.batches.conftest import line


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngineClient:
    made = FakeEngineClient()

    def load(_settings: ServerSettings, _progress: Any) -> LoadedModel:
        return LoadedModel(made.client, FakeTextModel().model)

    monkeypatch.setattr(run_batch, "load_model", load)
    monkeypatch.setattr("server.startup.logs.set_up_logs", lambda *_: None)
    return made


def run(folder: Path, content: bytes, *flags: str) -> int:
    (folder / "in.jsonl").write_bytes(content)
    return cli.main(["run-batch", "-i", str(folder / "in.jsonl"), "-o", str(folder / "out.jsonl"), *flags])


def answers(folder: Path) -> dict[str, Any]:
    lines = [json.loads(text) for text in (folder / "out.jsonl").read_text().splitlines()]
    assert len({answer["custom_id"] for answer in lines}) == len(lines)
    return {answer["custom_id"]: answer["response"] for answer in lines}


def test_all_requests_are_answered(
    engine: FakeEngineClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = {"messages": [{"role": "user", "content": "a"}]}
    content = b"".join(line(f"r{at}") for at in range(100)) + line("bad", {"prompt": 5})
    assert run(tmp_path, content + b"\n" + line("chat", chat, "/v1/chat/completions")) == 0
    found = answers(tmp_path)
    assert len(found) == 102
    assert found["r7"]["body"]["choices"][0]["text"] == "<r7>"
    assert found["chat"]["status_code"] == 200
    assert (found["bad"]["status_code"], found["bad"]["body"]["error"]["param"]) == (400, "prompt")
    shown = capsys.readouterr().err
    assert "102 of 102 requests answered; 1 of them with an error" in shown
    assert engine.is_shut_down


def test_an_interrupted_run_goes_on(
    engine: FakeEngineClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = b"".join(line(f"r{at}") for at in range(10))
    assert run(tmp_path, content) == 0
    out = tmp_path / "out.jsonl"
    lines = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:6]) + lines[6][:20])  # as a kill leaves it
    capsys.readouterr()
    assert run(tmp_path, content) == 1
    assert "has answers already; --resume goes on with it" in capsys.readouterr().err
    engine.submitted.clear()
    engine._failure = None
    assert run(tmp_path, content, "--resume") == 0
    assert "4 of 10 requests answered, the other 6 before" in capsys.readouterr().err
    assert len(engine.submitted) == 4
    assert answers(tmp_path).keys() == {f"r{at}" for at in range(10)}
    assert run(tmp_path, content, "--resume") == 0
    assert len(engine.submitted) == 4


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "line 1: the line is not valid JSON"),
        (line("a") + line("a"), "line 2: an earlier line has the same custom_id"),
        (line("a", url="/v1/images"), "line 1: url is"),
    ],
)
def test_a_bad_file_is_refused_before_a_model_is_loaded(
    engine: FakeEngineClient, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, words: str
) -> None:
    assert run(tmp_path, content) == 1
    assert words in capsys.readouterr().err
    assert not engine.is_alive


def test_files_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run-batch", "-i", str(tmp_path / "none"), "-o", str(tmp_path / "out")]
    assert cli.main(arguments) == 1
    assert "cannot be read: No such file" in capsys.readouterr().err
    (tmp_path / "in").write_bytes(line("a"))
    assert cli.main(["run-batch", "-i", str(tmp_path / "in"), "-o", str(tmp_path)]) == 1
    assert "cannot be written: Is a directory" in capsys.readouterr().err
    for content in (b"a poem\n", b"a line without its end", line("a"), b'{"id":"x","custom_id":"a"}\n'):
        (tmp_path / "out").write_bytes(content)
        with pytest.raises(NoAnswer, match="line 1, is no answer; nothing was changed"):
            AnswerFile(tmp_path / "out", resume=True)
        assert (tmp_path / "out").read_bytes() == content
    assert cli.main([*arguments, "--model", "a", "--model", "b"]) == 2


def test_an_engine_that_fails_ends_the_run(
    engine: FakeEngineClient, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.is_manual = True
    start = engine.start

    def start_and_fail(loop: asyncio.AbstractEventLoop) -> None:
        start(loop)
        loop.call_later(0.05, engine.fail, "the device is gone")

    monkeypatch.setattr(engine, "start", start_and_fail)
    assert run(tmp_path, line("a")) == 1
    assert "the engine failed: the device is gone" in capsys.readouterr().err
    assert os.path.getsize(tmp_path / "out.jsonl") == 0
