"""Models of the Hub, from a server that answers as the Hub does."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants, hf_hub_download
from huggingface_hub.utils import close_session

from server.model_sources.cache_folder import ModelStoreError
from server.model_sources.hub_records import all_records
from server.model_sources.model_store import ensure_model, name_of, pull_model, resolve_model
from tests.server.model_sources.fake_hub import FOLDER, QUANTS, SHARDS, FakeHub
from tests.server.model_sources.wheels import Stages


def go_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    close_session()  # the library decides for each session


def ignore(stage: str, done: int, total: int) -> None:
    pass


def unused(stage: str, done: int, total: int) -> None:
    pytest.fail(f"nothing should be fetched, but {stage} began")


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_of_a_folder_only_what_is_read_is_fetched(hub: FakeHub) -> None:
    assert resolve_model("owner/folder") is None
    stages = Stages()
    path = ensure_model("owner/folder", stages)
    assert names_in(path) == {"config.json", "tokenizer.json", "model.safetensors"}
    assert (path / "model.safetensors").read_bytes() == FOLDER["model.safetensors"]
    assert hub.downloads == ["model.safetensors", "tokenizer.json", "config.json"]
    total = sum(len(FOLDER[name]) for name in hub.downloads)
    assert stages.names == ["download owner/folder"]
    counts = [done for _, done, _ in stages.calls]
    assert counts == sorted(set(counts))  # a bar that has ended must not begin anew
    assert stages.calls[0] == ("download owner/folder", 0, total)
    assert stages.calls[-1] == ("download owner/folder", total, total)
    assert name_of("owner/folder", path) == "owner/folder"


def test_what_was_fetched_starts_without_the_hub(hub: FakeHub) -> None:
    path = ensure_model("owner/folder", ignore)
    asked = hub.asked
    assert resolve_model("owner/folder") == ensure_model("owner/folder", unused) == path
    assert hub.asked == asked
    assert [record.name for record in all_records()] == ["owner/folder"]


def test_a_pull_takes_the_newest(hub: FakeHub) -> None:
    old = pull_model("owner/folder", ignore)
    hub.add("owner/folder", FOLDER | {"config.json": b'{"is": "new"}'})
    assert ensure_model("owner/folder", unused) == old
    hub.downloads.clear()
    new = pull_model("owner/folder", ignore)
    assert new != old
    assert (new / "config.json").read_bytes() == b'{"is": "new"}'
    assert hub.downloads == ["config.json"]  # the others have not changed
    assert resolve_model("owner/folder") == new


@pytest.mark.parametrize("quant", ["Q8_0", "q8_0", "tiny-Q8_0.gguf"])
def test_of_many_gguf_files_the_named_one_is_fetched(hub: FakeHub, quant: str) -> None:
    path = ensure_model(f"owner/gguf:{quant}", ignore)
    assert path.name == "tiny-Q8_0.gguf"
    assert path.read_bytes() == QUANTS["tiny-Q8_0.gguf"]
    assert hub.downloads == ["tiny-Q8_0.gguf"]


def test_all_shards_of_the_named_one_are_fetched(hub: FakeHub) -> None:
    path = ensure_model("owner/gguf:F16", ignore)
    assert path.name == "tiny-F16-00001-of-00002.gguf"
    assert sorted(hub.downloads) == sorted(SHARDS)
    assert path.with_name("tiny-F16-00002-of-00002.gguf").read_bytes() == b"GGUF of shard 2"


def test_a_revision(hub: FakeHub) -> None:
    repository = hub.repositories["owner/folder"]
    repository.revisions["v2"] = FOLDER | {"config.json": b'{"version": 2}'}
    for revision in ("v2", repository.commit("v2")):
        path = ensure_model(f"owner/folder@{revision}", ignore)
        assert (path / "config.json").read_bytes() == b'{"version": 2}'
    assert (ensure_model("owner/folder", ignore) / "config.json").read_bytes() == b"{}"


def test_a_missing_file_is_fetched_again(hub: FakeHub) -> None:
    path = ensure_model("owner/folder", ignore)
    (path / "tokenizer.json").unlink()
    assert resolve_model("owner/folder") is None
    assert names_in(ensure_model("owner/folder", ignore)) == {"config.json", "tokenizer.json", "model.safetensors"}


def test_an_interrupted_download_keeps_what_has_arrived(hub: FakeHub) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if done > len(FOLDER["model.safetensors"]):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull_model("owner/folder", interrupt)
    assert resolve_model("owner/folder") is None
    hub.downloads.clear()
    pull_model("owner/folder", ignore)
    assert "model.safetensors" not in hub.downloads
    assert resolve_model("owner/folder") is not None


def test_a_connection_that_breaks_is_taken_up_again(hub: FakeHub) -> None:
    hub.cut_after = 100_000
    path = pull_model("owner/folder", ignore)
    assert (path / "model.safetensors").read_bytes() == FOLDER["model.safetensors"]
    assert hub.downloads.count("model.safetensors") == 2


def test_offline_with_what_another_program_has_fetched(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    paths = [Path(hf_hub_download("owner/folder", name)) for name in ("config.json", "tokenizer.json")]
    go_offline(monkeypatch)
    with pytest.raises(ModelStoreError, match=r"HF_HUB_OFFLINE.*of what is in the cache, owner/folder has neither"):
        ensure_model("owner/folder", unused)
    (paths[0].parent / "model.safetensors").write_bytes(b"weights")
    assert ensure_model("owner/folder", unused) == paths[0].parent


def test_offline_without_the_model(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    go_offline(monkeypatch)
    with pytest.raises(ModelStoreError, match=r"owner/gguf:Q8_0 has not been fetched yet, and HF_HUB_OFFLINE forbids"):
        ensure_model("owner/gguf:Q8_0", unused)
    assert hub.asked == 0


def test_a_hub_that_cannot_be_reached(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pull_model("owner/folder", ignore)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert pull_model("owner/folder", unused) == path
    with pytest.raises(ModelStoreError, match=r"owner/gguf could not be fetched from http://127.0.0.1:9: .*network"):
        pull_model("owner/gguf", unused)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("owner/none", r"owner/none is no file or folder here, and http.* has no such model.*HF_TOKEN"),
        ("owner/private", r"owner/private is no file or folder here, .*a token that may read it \(HF_TOKEN\)"),
        ("owner/gated", r"owner/gated is gated: accept its terms at http://.*/owner/gated and set HF_TOKEN"),
        ("owner/folder@v9", r"owner/folder at http://.* has no revision 'v9'"),
        ("owner/gguf:Q2_K", r"owner/gguf has no GGUF model 'Q2_K'; it has .*tiny-Q8_0.gguf"),
        ("owner--name/model", r"owner--name/model is no name that http.* may have"),
    ],
)
def test_what_the_hub_does_not_give(hub: FakeHub, name: str, message: str) -> None:
    hub.add("owner/private", FOLDER, token="hf_right")
    hub.add("owner/gated", FOLDER, token="hf_right", is_gated=True)
    with pytest.raises(ModelStoreError, match=message):
        ensure_model(name, ignore)
    assert resolve_model(name) is None


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (403, r"refused to give owner/gguf with status 403; the token \(HF_TOKEN\) may not read it"),
        (500, "with status 500$"),
    ],
)
def test_a_hub_that_refuses(hub: FakeHub, status: int, message: str) -> None:
    path = pull_model("owner/folder", ignore)
    hub.refusal = status
    assert pull_model("owner/folder", unused) == path
    with pytest.raises(ModelStoreError, match=message):
        pull_model("owner/gguf", unused)


def test_a_cache_that_cannot_be_written_is_no_obstacle(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("EAGRE_CACHE", str(tmp_path / "file" / "cache"))
    assert names_in(ensure_model("owner/folder", ignore)) == {"config.json", "tokenizer.json", "model.safetensors"}


@pytest.mark.parametrize("is_gated", [False, True])
def test_a_token_opens_what_is_closed(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, is_gated: bool) -> None:
    hub.add("owner/closed", FOLDER, token="hf_right", is_gated=is_gated)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert "config.json" in names_in(ensure_model("owner/closed", ignore))


def test_a_file_that_is_listed_and_gone(hub: FakeHub) -> None:
    hub.gone.add("tokenizer.json")
    with pytest.raises(ModelStoreError, match="a file of owner/folder is missing"):
        ensure_model("owner/folder", ignore)
    assert resolve_model("owner/folder") is None


def test_too_little_space_is_noticed_before(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(ModelStoreError, match=r"no space left for owner/folder: \d+ MB are needed.*HF_HOME"):
        ensure_model("owner/folder", ignore)
    assert hub.downloads == []
