"""What a command says of a connection that failed."""

from __future__ import annotations

import errno
import socket
from typing import Any

import aiohttp
import pytest

from server.cli.client.errors import reason_of


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (aiohttp.ClientOSError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 8000)"), "Connection refused"),
        (aiohttp.ClientOSError(socket.EAI_NONAME, "Name or service not known"), "Name or service not known"),
        (aiohttp.ClientPayloadError("<TransferEncodingError: 400>"), "the server has closed it before the end"),
        (aiohttp.ServerDisconnectedError(), "the server has closed it before the end"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_a_reason_is_told_in_words_without_those_of_the_library(error: Any, said: str) -> None:
    assert reason_of(error).startswith(said)
    assert "Error:" not in reason_of(error)
