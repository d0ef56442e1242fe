"""A built-in model that the Hub has too: downloaded from there, and from packages where that fails."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from server.model_sources import builtin_models
from server.model_sources.builtin_parts import BuiltinPart
from server.model_sources.cache_folder import ModelStoreError
from server.model_sources.model_store import pull_model
from tests.server.model_sources.fake_hub import FakeHub
from tests.server.model_sources.wheels import CONTENT, PIECES, Stages, builtin

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
