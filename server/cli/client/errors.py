"""Why a command has nothing to show."""

from __future__ import annotations

import os

import aiohttp


class NoAnswer(RuntimeError):
    """There is no answer; the message tells the user why."""


class NoServer(NoAnswer):
    """No server listens at the address."""


def reason_of(error: aiohttp.ClientError | TimeoutError) -> str:
    """What has happened to a connection, in the system's words where it has some."""
    if isinstance(error, aiohttp.ClientOSError) and error.errno is not None:
        # The number of a name that cannot be resolved is negative, and its words are no errno's.
        return os.strerror(error.errno) if error.errno > 0 else str(error.strerror)
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError):
        return "the server has closed it before the end of the answer"
    return str(error) or type(error).__name__
