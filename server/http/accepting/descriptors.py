"""Descriptors of the process: how many connections they allow, and whether hardly any are left."""

from __future__ import annotations

import contextlib
import os
import resource

MAX_KEPT = 64  # for files, pipes and connections of the server's own
_FOLDERS = ("/proc/self/fd", "/dev/fd")


def num_connections(most: int, num_each: int = 1) -> int:
    """How many connections may be open, `most` of them where the limit of open files is no lower.

    Args:
        num_each: descriptors that a connection takes.
    """
    soft = _soft_limit()
    if soft is None:
        return most
    left = (soft - _num_open() - _num_kept(soft)) // num_each
    return max(1, min(most, left - left // 9))  # an eighth may come beyond the limit, to be refused


def are_scarce(newest: int) -> bool:
    """Whether hardly any descriptors are left, by the newest one, which is always the lowest that is free.

    What remains is enough for files and for the ports between servers.
    """
    soft = _soft_limit()
    return soft is not None and newest >= soft - _num_kept(soft) * 3 // 4


def _soft_limit() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def _num_kept(soft: int) -> int:
    return min(MAX_KEPT, soft // 4)


def _num_open() -> int:
    for folder in _FOLDERS:
        with contextlib.suppress(OSError):
            return len(os.listdir(folder))
    return 0
