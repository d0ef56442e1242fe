"""Descriptors of the process: how many connections they allow, and what happens where none are left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from typing import Any

from engine.interface.log_interval import LogInterval
from server.startup.logs import log

_ACCEPT_FAILED = "socket.accept() out of system resource"  # asyncio's words

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


def are_scarce(transport: asyncio.Transport) -> bool:
    """Whether hardly any descriptors are left. A new one is always the lowest that is free.

    What remains is more than two listeners accept in one turn of the loop, and enough for the ports between servers.
    """
    connection, soft = transport.get_extra_info("socket"), _soft_limit()
    return connection is not None and soft is not None and connection.fileno() >= soft - _num_kept(soft) * 3 // 4


class AcceptErrors:
    """An exception handler of an event loop that logs once a minute that connections cannot be accepted.

    asyncio stops accepting for a second whenever the process has no descriptors left, and reports each attempt with a
    traceback.
    """

    def __init__(self) -> None:
        self._interval = LogInterval()

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if context.get("message") != _ACCEPT_FAILED:
            loop.default_exception_handler(context)
        elif self._interval.is_due():
            log.error("accept_failed", reason=str(context.get("exception")))


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
