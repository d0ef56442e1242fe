"""Reads files whose content may run as code: only those that nobody but this user and root can have written.

Compiled programs are such files. Whoever owns the file, or may write it or one of the folders on its way, could put
code of his own in its place.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from functools import cache
from pathlib import Path

from engine.interface.regular_file import check_regular

_ROOT = 0


class NotTrusted(OSError):
    """Others than this user could have written a file; the message says why."""


def read_trusted(path: Path) -> bytes:
    """The content of a file.

    Raises:
        NotTrusted: others could have written it.
        OSError: it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        check_regular(descriptor, path)
        _check(path, os.fstat(descriptor))  # of the open file, which cannot be exchanged any more
        check_trusted_folder(path.parent)
        return file.read()


def check_trusted_folder(folder: Path) -> None:
    """Raises NotTrusted if others could exchange what is in a folder, by it or by one that it is in."""
    resolved = folder.resolve()
    for each in (resolved, *resolved.parents):
        _check(each, each.stat())


def _check(path: Path, found: os.stat_result) -> None:
    if found.st_uid not in (os.geteuid(), _ROOT):
        raise NotTrusted(f"{path} belongs to another user (uid {found.st_uid})")
    if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX:
        return  # as /tmp: only its owner may move or remove what is in it
    if found.st_mode & stat.S_IWOTH:
        raise NotTrusted(f"{path} can be written by every user")
    if found.st_mode & stat.S_IWGRP and not _is_private_group(found.st_gid):
        raise NotTrusted(f"{path} can be written by a group of users (gid {found.st_gid})")


@cache
def _is_private_group(gid: int) -> bool:
    """Whether a group is root's, or the one that many systems give each user for himself; its name is the user's."""
    if gid == _ROOT:
        return True
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:  # a user without a name, as in some containers
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
