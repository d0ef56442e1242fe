"""Errors of the commands that talk to a server. The command's start imports this file, and so it leaves aiohttp out."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp


class NoAnswer(RuntimeError):
    """The command failed; the message says why, for the user."""


class NoServer(NoAnswer):
    """No server listens at the address."""


class NoModel(NoAnswer):
    """The server has no model of the name that was given."""


def reason_of(error: aiohttp.ClientError | TimeoutError) -> str:
    """What happened to a connection, by the system's message where there is one."""
    import aiohttp

    if isinstance(error, aiohttp.ClientOSError) and error.errno is not None:
        # A name that cannot be resolved has a negative number, which is not an errno, and a message of its own.
        return os.strerror(error.errno) if error.errno > 0 else str(error.strerror)
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError):
        return "the server has closed it before the end of the answer"
    return str(error) or type(error).__name__
