"""`eagre run`, `ps`, `show`, `stop` and `rm`, over a server of the tests and one in the background."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind
from huggingface_hub import constants

from benchmarks.serving.server_process import free_port
from server.cli import main as cli
from server.cli.client import address
from server.cli.manage.server_record import ServerRecord, running_servers
from server.model_sources import builtin_models
from tests.gguf_tensors import write_random_model
from tests.server.conftest import RunningServer
from tests.server.model_sources.wheels import CONTENT, builtin, make_wheel, part


@pytest.fixture(autouse=True)
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server at the default address, and empty caches."""
    for name in ("EAGRE_URL", "EAGRE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(address, "DEFAULT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("EAGRE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process in the place of a server in the background."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]) as process:
        yield process
        process.kill()


async def run_cli(*arguments: str) -> int:
    return await asyncio.to_thread(cli.main, list(arguments))


async def test_ps_lists_the_models_of_a_server(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run_cli("ps", "--url", server.url) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAME", "STATE", "CONTEXT", "QUANTIZATION", "SERVER", "PROCESS"]
    assert line.split() == ["fake", "ready", "512", "-", server.url, "-"]
    assert await run_cli("ps", "--url", server.url, "--json") == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert (model["id"], model["server"], model["pid"]) == ("fake", server.url, None)


async def test_without_a_server_ps_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert await run_cli("ps") == 1
    assert capsys.readouterr().err == (
        f"eagre: no server answers at {address.DEFAULT_URL}; `eagre run MODEL` or `eagre serve` starts one\n"
    )


async def test_show_tells_what_a_server_knows(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run_cli("show", "fake", "--url", server.url) == 0
    lines = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    shown = {name.strip(): value.strip() for name, value in lines.items()}
    assert (shown["max model len"], shown["modalities"]) == ("512", "text")
    assert await run_cli("show", "nope", "--url", server.url) == 1
    assert "has no model nope; `eagre ps` lists what it has" in capsys.readouterr().err


async def test_show_reads_the_files_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_random_model(tmp_path / "tiny.gguf", lambda name: Kind.Q8_0)
    assert await run_cli("show", str(path), "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["architecture"], shown["context_length"], shown["path"]) == ("llama", 512, str(path))
    assert await run_cli("show", "qwen2.5-coder-1.5b") == 0
    text = capsys.readouterr().out
    assert "1,117,320,768" in text
    assert "Apache License 2.0" in text
    assert await run_cli("show", "no-such-model") == 1
    assert capsys.readouterr().err.startswith("eagre: unknown model 'no-such-model'; ")


async def test_run_talks_with_a_server_that_has_the_model(
    server: RunningServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello"))
    monkeypatch.setattr(address, "DEFAULT_URL", server.url)
    assert await run_cli("run", "fake", "--system", "Be brief.") == 0
    assert "user:hello" in capsys.readouterr().out
    assert await run_cli("run", "nope", "--url", server.url) == 1
    assert capsys.readouterr().err == f"eagre: the server at {server.url} has no model nope; it has fake\n"


async def test_run_starts_no_server_for_a_model_that_cannot_be_had(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a server is started"))
    assert await run_cli("run", "qwen2.5-coder-1.5") == 1
    assert "unknown model 'qwen2.5-coder-1.5'; did you mean qwen2.5-coder-1.5b?" in capsys.readouterr().err


async def test_run_reports_why_its_server_has_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(b"GGUF and nothing more")
    assert await run_cli("run", str(path)) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("loading damaged; the log is ")
    assert lines[-1].startswith(f"eagre: {path} is no GGUF file, or it is damaged")
    assert running_servers() == []


def test_stop_ends_what_run_has_started(sleeper: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]) -> None:
    ServerRecord.of(sleeper.pid, "http://127.0.0.1:2", "tiny", 2).write()
    assert cli.main(["rm", "tiny"]) == 1
    assert capsys.readouterr().err == "eagre: tiny is served at http://127.0.0.1:2; `eagre stop tiny` ends that\n"
    assert cli.main(["stop", "another"]) == 1
    assert "no server of another was started by `eagre run`" in capsys.readouterr().err
    assert sleeper.poll() is None
    assert cli.main(["stop"]) == 0
    assert capsys.readouterr().err == "tiny at http://127.0.0.1:2 has ended\n"
    assert sleeper.wait() == -15
    assert cli.main(["stop"]) == 1
    assert "no server was started by `eagre run`" in capsys.readouterr().err


def test_ps_lists_a_server_that_loads(sleeper: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]) -> None:
    ServerRecord.of(sleeper.pid, "http://127.0.0.1:2", "tiny", 2).write()
    assert cli.main(["ps"]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split() == ["tiny", "loading", "-", "-", "http://127.0.0.1:2", str(sleeper.pid)]


async def test_run_takes_the_server_that_an_earlier_run_has_started(
    server: RunningServer,
    sleeper: subprocess.Popen[bytes],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ServerRecord.of(sleeper.pid, server.url, "fake", 2).write()
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello"))
    assert await run_cli("run", "fake") == 0
    assert "user:hello" in capsys.readouterr().out


def test_a_process_that_has_the_number_of_an_ended_server_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    ServerRecord(sleeper.pid, "another time", "http://127.0.0.1:2", "tiny", 2).write()
    assert running_servers() == []
    assert cli.main(["stop"]) == 1
    assert sleeper.poll() is None


def test_rm_deletes_a_builtin_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = make_wheel(tmp_path / "wheels", {"tiny.gguf": CONTENT})
    monkeypatch.setattr(builtin_models, "BUILTIN_MODELS", {"tiny": builtin(part(wheel, CONTENT))})
    folder = tmp_path / "cache" / "models"
    folder.mkdir(parents=True)
    (folder / "tiny.gguf").write_bytes(CONTENT)
    (folder / "other.gguf").write_bytes(CONTENT)
    assert cli.main(["rm", "tiny"]) == 0
    assert capsys.readouterr().out == "tiny is removed; 1.0 MB are free\n"
    assert [path.name for path in folder.iterdir()] == ["other.gguf"]
    assert cli.main(["rm", "tiny"]) == 1
    assert capsys.readouterr().err == "eagre: tiny is not here; `eagre models` lists what is\n"


def test_rm_leaves_files_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.gguf"
    path.write_bytes(CONTENT)
    assert cli.main(["rm", str(path)]) == 1
    assert "a file of your own; delete it yourself" in capsys.readouterr().err
    assert path.exists()
