"""Folders of processes: they go with their process, at the latest when another one starts."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.interface.private_folder import TEMPORARY_PREFIX, private_folder, remove_abandoned, temporary_folder

HOLDER = """
import sys
from engine.interface.private_folder import temporary_folder
with temporary_folder() as folder:
    (folder / "file").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_a_folder_goes_with_its_context(parent: Path) -> None:
    with temporary_folder() as folder:
        (folder / "file").write_text("x")
        assert folder.parent == parent
        assert folder.stat().st_mode & 0o777 == 0o700
    assert list(parent.iterdir()) == []


def test_the_folder_of_a_killed_process_goes_with_the_next_start(parent: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        held = Path(holder.stdout.readline().decode().strip())
        with temporary_folder():
            assert (held / "file").exists()  # its process lives
        holder.send_signal(signal.SIGKILL)
    assert held.exists()
    with temporary_folder():
        assert not held.exists()


def test_what_is_no_folder_of_ours_stays(parent: Path, tmp_path: Path) -> None:
    other = tmp_path / "eagre-other"
    other.mkdir()
    (tmp_path / f"{TEMPORARY_PREFIX}file").write_text("x")
    (tmp_path / f"{TEMPORARY_PREFIX}link").symlink_to(other)
    with private_folder(tmp_path, TEMPORARY_PREFIX):
        remove_abandoned(parent, TEMPORARY_PREFIX)
    assert {path.name for path in tmp_path.iterdir()} == {
        "eagre-other", f"{TEMPORARY_PREFIX}file", f"{TEMPORARY_PREFIX}link"
    }  # fmt: skip
