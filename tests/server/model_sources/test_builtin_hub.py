"""A built-in model that the Hub has too: downloaded from there, and from packages where that fails."""

from __future__ import annotations

import dataclasses
import io
import zipfile
from pathlib import Path

import pytest

from server.model_sources import builtin_models
from server.model_sources.builtin_parts import BuiltinPart, FolderFile
from server.model_sources.builtin_store import find_builtin
from server.model_sources.cache_folder import ModelStoreError
from server.model_sources.model_store import pull_model
from server.model_sources.removal import remove_model
from tests.server.model_sources.fake_hub import FakeHub
from tests.server.model_sources.wheels import CONTENT, PIECES, Stages, builtin, make_wheel, part, sha256

FILE = "tiny-q4_k_m.gguf"


@pytest.fixture
def both(hub: FakeHub, cache: Path, parts: list[BuiltinPart], monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """The built-in model "tiny" is in three packages, and on the Hub."""
    model = dataclasses.replace(builtin(*parts), hub=f"tides/Tiny-GGUF:{FILE}")
    monkeypatch.setattr(builtin_models, "BUILTIN_MODELS", {"tiny": model})
    hub.add("tides/Tiny-GGUF", {FILE: CONTENT})
    return hub


def remove_wheels(folder: Path) -> None:
    for wheel in (folder / "wheels").glob("*.whl"):
        wheel.unlink()


def test_the_hub_is_asked_first(both: FakeHub, tmp_path: Path) -> None:
    remove_wheels(tmp_path)
    stages = Stages()
    path = pull_model("tiny", stages)
    assert path.read_bytes() == CONTENT
    assert both.downloads == [FILE]
    assert stages.names == ["download tiny"]
    assert stages.calls[-1] == ("download tiny", len(CONTENT), len(CONTENT))
    done = [done for _, done, _ in stages.calls]
    assert done == sorted(done)


def test_a_broken_connection_goes_on_behind_the_parts_that_have_arrived(both: FakeHub, tmp_path: Path) -> None:
    remove_wheels(tmp_path)
    both.cut_after = len(PIECES[0]) + 1000
    assert pull_model("tiny", Stages()).read_bytes() == CONTENT
    assert both.downloads == [FILE, FILE]


@pytest.mark.usefixtures("copied_wheels")
def test_an_interrupted_pull_keeps_what_came_from_the_hub(both: FakeHub, cache: Path, tmp_path: Path) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if done > len(PIECES[0]) + len(PIECES[1]):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull_model("tiny", interrupt)
    assert (cache / "tiny.partial").read_bytes() == PIECES[0] + PIECES[1]
    both.repositories.clear()  # what is missing comes out of a package
    stages = Stages()
    assert pull_model("tiny", stages).read_bytes() == CONTENT
    assert stages.names[-2:] == ["download tiny (3 of 3)", "unpack tiny (3 of 3)"]


@pytest.mark.usefixtures("copied_wheels")
@pytest.mark.parametrize("trouble", ["no repository", "status 500", "another file", "a shorter file", "no server"])
def test_what_the_hub_does_not_give_comes_from_packages(
    both: FakeHub, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    match trouble:
        case "no repository":
            both.repositories.clear()
        case "status 500":
            both.refusal = 500
        case "another file":
            both.add("tides/Tiny-GGUF", {FILE: PIECES[0] + b"?" * (len(CONTENT) - len(PIECES[0]))})
        case "a shorter file":
            both.add("tides/Tiny-GGUF", {FILE: CONTENT[:-1]})
        case _:
            monkeypatch.setattr(
                "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
                "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}",
            )
    stages = Stages()
    assert pull_model("tiny", stages).read_bytes() == CONTENT
    assert stages.names[-1] == "unpack tiny (3 of 3)"


def test_without_both_the_error_has_both_reasons(both: FakeHub, tmp_path: Path) -> None:
    both.refusal = 503
    remove_wheels(tmp_path)
    with pytest.raises(
        ModelStoreError, match=r"tides/Tiny-GGUF could not be fetched from the Hub: .*503.*, and pip could not download"
    ):
        pull_model("tiny", Stages())


NAMES = ("config.json", "1_Pooling/config.json", "model.safetensors")
FILES = {name: name.encode() * 1000 for name in NAMES}


@pytest.fixture
def folder_model(hub: FakeHub, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """The built-in model "tiny" is a folder on the Hub, and an archive in a package."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
    content = buffer.getvalue()
    wheel = make_wheel(tmp_path / "wheels", {"tiny_folder/tiny.zip": content}, "tiny_folder")
    files = tuple(FolderFile(name, len(data), sha256(data)) for name, data in FILES.items())
    model = builtin(part(wheel, content, ".zip"), content=content)
    model = dataclasses.replace(model, hub="tides/tiny", files=files)
    monkeypatch.setattr(builtin_models, "BUILTIN_MODELS", {"tiny": model})
    hub.add("tides/tiny", {**FILES, "README.md": b"more"})
    return hub


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_folder_comes_from_the_hub_file_by_file(folder_model: FakeHub, cache: Path, tmp_path: Path) -> None:
    remove_wheels(tmp_path)
    stages = Stages()
    folder = pull_model("tiny", stages)
    assert (folder, contents(folder)) == (cache / "tiny", FILES)
    assert folder_model.downloads == list(NAMES)
    total = sum(map(len, FILES.values()))
    assert stages.calls[-1] == ("download tiny", total, total)
    assert pull_model("tiny", Stages()) == folder
    assert find_builtin("tiny") == folder
    assert folder_model.downloads == list(NAMES)
    (folder / "config.json").write_bytes(b"?" * len(FILES["config.json"]))
    assert find_builtin("tiny") is None
    assert contents(pull_model("tiny", Stages())) == FILES
    assert remove_model("tiny") > total
    assert [path.name for path in cache.iterdir()] == ["tiny.lock"]


@pytest.mark.usefixtures("copied_wheels")
@pytest.mark.parametrize("trouble", ["another file", "a longer file", "no file", "no server"])
def test_a_folder_that_the_hub_does_not_give_comes_from_its_package(
    folder_model: FakeHub, cache: Path, trouble: str
) -> None:
    match trouble:
        case "another file":
            folder_model.add("tides/tiny", {**FILES, "config.json": b"?" * len(FILES["config.json"])})
        case "a longer file":
            folder_model.add("tides/tiny", {**FILES, "model.safetensors": FILES["model.safetensors"] + b"?"})
        case "no file":
            folder_model.gone.add("model.safetensors")
        case _:
            folder_model.refusal = 503
    assert contents(pull_model("tiny", Stages())) == FILES
    assert not [path for path in cache.iterdir() if path.name.startswith(".")]
    assert find_builtin("tiny") == cache / "tiny"
