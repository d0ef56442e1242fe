"""Files and folders as models: which are taken, and why the others are not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from server.model_sources.cache_folder import ModelStoreError
from server.model_sources.model_paths import gguf_models
from server.model_sources.model_store import ensure_model, name_of, pull_model, resolve_model

SHARDS = [f"big-0000{number}-of-00003.gguf" for number in (1, 2, 3)]


def unused(stage: str, done: int, total: int) -> None:
    pytest.fail(f"nothing should be fetched, but {stage} began")


def fill(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"GGUF and so on" if name.endswith(".gguf") else b"{}")
    return folder


def test_a_file_is_taken_as_it_is(tmp_path: Path) -> None:
    path = fill(tmp_path, "own.gguf") / "own.gguf"
    assert resolve_model(str(path)) == ensure_model(str(path), unused) == path


@pytest.mark.parametrize("name", SHARDS)
def test_any_shard_means_the_first(tmp_path: Path, name: str) -> None:
    fill(tmp_path, *SHARDS, "other.gguf")
    assert resolve_model(str(tmp_path / name)) == tmp_path / SHARDS[0]


def test_shards_have_the_name_of_their_model(tmp_path: Path) -> None:
    fill(tmp_path, *SHARDS, "own.gguf")
    assert name_of(str(tmp_path / SHARDS[1]), tmp_path / SHARDS[0]) == "big"
    assert name_of(str(tmp_path / "own.gguf"), tmp_path / "own.gguf") is None


@pytest.mark.parametrize(
    ("names", "meant"),
    [
        (["config.json", "model.safetensors"], "."),
        (["config.json"], "."),
        (["config.json", "model.safetensors", "a.gguf", "b.gguf"], "."),
        (["config.json", "a.gguf"], "a.gguf"),
        (["a.gguf", "README.md"], "a.gguf"),
        (["a.gguf", "mmproj-a-f16.gguf", "b-mmproj-f16.gguf", "imatrix.gguf"], "a.gguf"),
        (SHARDS, SHARDS[0]),
    ],
)
def test_what_a_folder_means(tmp_path: Path, names: list[str], meant: str) -> None:
    assert resolve_model(str(fill(tmp_path, *names))) == tmp_path / meant


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], r"is a folder without config.json and without a GGUF file"),
        (["a.gguf", "b.gguf"], r"holds 2 GGUF models; name one: a.gguf, b.gguf"),
        ([*SHARDS, "a.gguf"], r"holds 2 GGUF models; name one: a.gguf, big-00001-of-00003.gguf"),
        ([f"{letter}.gguf" for letter in "abcdefgh"], r"name one: a.gguf, b.gguf, .* and 3 more"),
        (SHARDS[1:], r"big-00001-of-00003.gguf is missing, a shard of a model of which others are there"),
    ],
)
def test_folders_that_mean_no_model(tmp_path: Path, names: list[str], message: str) -> None:
    with pytest.raises(ModelStoreError, match=message):
        resolve_model(str(fill(tmp_path, *names)))


def test_a_shard_without_the_first(tmp_path: Path) -> None:
    fill(tmp_path, *SHARDS[1:])
    with pytest.raises(ModelStoreError, match=r"is a shard of .* first shard, big-00001-of-00003.gguf, is missing"):
        resolve_model(str(tmp_path / SHARDS[1]))


def make_nothing(folder: Path) -> Path:
    return folder / "missing.gguf"


def make_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def make_other(folder: Path) -> Path:
    (folder / "other.gguf").write_bytes(b"GGML and so on")
    return folder / "other.gguf"


def make_pointer(folder: Path) -> Path:
    (folder / "other.gguf").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:")
    return folder / "other.gguf"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (make_nothing, "no such file"),
        (make_pipe, "is no regular file"),
        (make_other, 'is no GGUF file: it begins with "GGML"'),
        (make_pointer, r"other.gguf is a pointer of Git LFS"),
        (lambda folder: "missing.gguf", "no such file"),
        (lambda folder: "./some/where", "no such file"),
        (lambda folder: "~/there/is/no/such/model", "no such file"),
        (lambda folder: "~no-such-user/model.gguf", "no such file"),
        (lambda folder: "x" * 5000, "cannot be read: File name too long"),
        (lambda folder: "gpt-17", "unknown model 'gpt-17'; built-in models are smollm2-135m-instruct, gemma-3-270m"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, make: Callable[[Path], Path | str], message: str) -> None:
    with pytest.raises(ModelStoreError, match=message):
        resolve_model(str(make(tmp_path)))


def test_an_unknown_name_cannot_be_pulled() -> None:
    with pytest.raises(ModelStoreError, match="unknown model 'gpt-17'"):
        pull_model("gpt-17", unused)


def test_models_among_the_files_of_a_tree() -> None:
    files = ["README.md", "b.gguf", "Q8_0/a-00002-of-00002.gguf", "Q8_0/a-00001-of-00002.gguf", "mmproj-F16.gguf"]
    assert gguf_models(files) == ["Q8_0/a-00001-of-00002.gguf", "b.gguf"]
