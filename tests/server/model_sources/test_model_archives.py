"""Built-in models that are folders: their archive is unpacked once, whole or not at all."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from server.model_sources.builtin_store import folder_of, unpack
from server.model_sources.cache_folder import ModelStoreError

FILES = {"config.json": b"{}", "1_Pooling/config.json": b"[]"}


def archive(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path / "tiny.zip", "w") as file:
        file.writestr("1_Pooling/", b"")
        for name, content in files.items():
            file.writestr(name, content)
    return path / "tiny.zip"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_the_files_are_unpacked_once(tmp_path: Path) -> None:
    path = archive(tmp_path, FILES)
    folder = unpack(path)
    assert folder == folder_of(path) == tmp_path / "tiny"
    assert contents(folder) == FILES
    before = (folder / "config.json").stat().st_ino
    assert unpack(path) == folder
    assert (folder / "config.json").stat().st_ino == before


def test_what_is_missing_or_cut_short_is_unpacked_again(tmp_path: Path) -> None:
    path = archive(tmp_path, FILES)
    folder = unpack(path)
    (folder / "config.json").write_bytes(b"")
    assert contents(unpack(path)) == FILES
    (folder / "1_Pooling" / "config.json").unlink()
    assert contents(unpack(path)) == FILES
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


@pytest.mark.parametrize("name", ["../outside", "/outside"])
def test_files_outside_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelStoreError, match="is outside of it"):
        unpack(archive(tmp_path, {name: b"x"}))
    assert not folder_of(tmp_path / "tiny.zip").exists()


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tiny.zip").write_bytes(b"no archive")
    with pytest.raises(ModelStoreError, match="no archive of a model"):
        unpack(tmp_path / "tiny.zip")
