"""Files whose content may run as code are read where nobody else can have written them, and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.interface import trusted_file
from engine.interface.trusted_file import NotTrusted, read_trusted

STRANGER = 54321


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "cache" / "compiled"
    folder.mkdir(parents=True, mode=0o755)
    file = folder / "programs"
    file.write_bytes(b"code")
    file.chmod(0o644)
    return file


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a file or folder another user's; where this user may not, this process becomes another one's."""
    if os.geteuid() == 0:
        os.chown(path, STRANGER, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: STRANGER)


def test_what_only_this_user_can_write_is_read(path: Path) -> None:
    assert read_trusted(path) == b"code"
    path.chmod(0o600)
    path.parents[1].chmod(0o1777)  # as /tmp
    assert read_trusted(path) == b"code"


@pytest.mark.parametrize(("level", "mode"), [(0, 0o666), (0, 0o646), (1, 0o777), (2, 0o757), (3, 0o777)])
def test_what_every_user_can_write_is_not(path: Path, level: int, mode: int) -> None:
    each = (path, *path.parents)[level]
    before = each.stat().st_mode
    each.chmod(mode)
    try:
        with pytest.raises(NotTrusted, match="can be written by every user"):
            read_trusted(path)
    finally:
        each.chmod(before)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_what_another_user_owns_is_not(path: Path, level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    give_away((path, *path.parents)[level], monkeypatch)
    with pytest.raises(NotTrusted, match="belongs to another user"):
        read_trusted(path)


@pytest.mark.parametrize("is_private", [False, True])
def test_a_group_may_write_only_if_it_is_the_users_own(
    path: Path, is_private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.chmod(0o664)
    monkeypatch.setattr(trusted_file, "_is_private_group", lambda gid: is_private)
    if is_private:
        assert read_trusted(path) == b"code"
    else:
        with pytest.raises(NotTrusted, match="can be written by a group of users"):
            read_trusted(path)


def test_neither_a_link_nor_a_pipe_is_followed(path: Path) -> None:
    link, pipe = path.with_name("link"), path.with_name("pipe")
    link.symlink_to(path)
    os.mkfifo(pipe)
    for each in (link, pipe, path.with_name("missing")):
        with pytest.raises(OSError, match=each.name):
            read_trusted(each)
