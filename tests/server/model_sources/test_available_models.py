"""Which models are listed: the built-in ones, those of the Hub, and those in folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import hf_hub_download

from server.model_sources import builtin_models
from server.model_sources.available_models import AvailableModel, all_models
from server.model_sources.builtin_models import BuiltinModel
from server.model_sources.builtin_parts import BuiltinPart
from server.model_sources.model_store import pull_model
from tests.server.model_sources.fake_hub import FakeHub


@pytest.fixture(autouse=True)
def one_builtin(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the only built-in model, "tiny" of 10 bytes, which is not here."""
    model = BuiltinModel((BuiltinPart("tiny-gguf==1.0", "", ".gguf", "", 10),), "", "no license", "tests", 20)
    monkeypatch.setattr(builtin_models, "BUILTIN_MODELS", {"tiny": model})
    return tmp_path / "eagre" / "models" / "tiny.gguf"


def ignore(stage: str, done: int, total: int) -> None:
    pass


def listed(*paths: Path) -> list[AvailableModel]:
    return [model for model in all_models(map(str, paths)) if model.source != "built-in"]


@pytest.mark.parametrize("size", [None, 9, 10])
def test_builtins(one_builtin: Path, size: int | None) -> None:
    if size is not None:
        one_builtin.parent.mkdir(parents=True)
        one_builtin.write_bytes(b"?" * size)
    is_here = size == 10
    expected = AvailableModel(
        "tiny", "built-in", one_builtin if is_here else None, None if is_here else 10, "no license", "tests", 20
    )
    assert list(all_models([])) == [expected]


def test_what_was_pulled_from_the_hub(hub: FakeHub) -> None:
    paths = {name: pull_model(name, ignore) for name in ("owner/folder", "owner/gguf:F16", "owner/gguf:Q8_0@main")}
    assert listed() == [AvailableModel(name, "hub", path) for name, path in paths.items()]


def test_what_another_program_has_fetched(hub: FakeHub) -> None:
    shard = hf_hub_download("owner/gguf", "F16/tiny-F16-00001-of-00002.gguf")
    quant = hf_hub_download("owner/gguf", "tiny-Q8_0.gguf")
    hf_hub_download("owner/folder", "config.json")
    commit = hub.repositories["owner/folder"].commit("main")
    files = ("config.json", "model.safetensors")
    folders = [Path(hf_hub_download("owner/folder", name, revision=commit)).parent for name in files]
    assert shard
    assert listed() == [  # without the model of which one shard is missing
        AvailableModel("owner/folder", "hub", folders[0]),
        AvailableModel("owner/gguf:tiny-Q8_0.gguf", "hub", Path(quant)),
    ]


def test_a_revision_without_a_branch_is_named_by_its_commit(hub: FakeHub) -> None:
    commit = hub.repositories["owner/gguf"].commit("main")
    path = hf_hub_download("owner/gguf", "tiny-Q8_0.gguf", revision=commit)
    assert listed() == [AvailableModel(f"owner/gguf:tiny-Q8_0.gguf@{commit}", "hub", Path(path))]
    assert pull_model(listed()[0].name, ignore) == Path(path)


def test_models_in_folders(tmp_path: Path) -> None:
    for name in ("a.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf", "mmproj-a.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "config.json").touch()
    (tmp_path / "empty").mkdir()
    expected = [
        AvailableModel(str(tmp_path / name), "file", tmp_path / name)
        for name in ("a.gguf", "b-00001-of-00002.gguf", "c")
    ]
    assert listed(tmp_path) == expected
    assert listed(tmp_path / "c", tmp_path / "a.gguf") == [expected[2], expected[0]]


@pytest.mark.parametrize(
    ("name", "message"),
    [("none.gguf", "there is no such file"), ("empty", "without a GGUF file"), ("text.gguf", 'it begins with "text"')],
)
def test_what_is_no_model_is_listed_with_the_reason(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.gguf").write_bytes(b"text")
    (model,) = listed(tmp_path / name)
    assert model.path is None
    assert model.error is not None
    assert message in model.error
