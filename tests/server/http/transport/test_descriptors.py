"""The limit of open files bounds the connections."""

from __future__ import annotations

import asyncio
import resource
import socket
from typing import Any

import pytest
from structlog.testing import capture_logs

from server.http.transport.descriptors import AcceptErrors, are_scarce, num_connections


@pytest.mark.parametrize("num_each", [1, 2])
def test_a_low_limit_of_open_files_allows_fewer_connections(monkeypatch: pytest.MonkeyPatch, num_each: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    few = num_connections(4096, num_each)
    assert 300 < few * num_each < 1000
    assert num_connections(10, num_each) == 10


def test_without_a_limit_of_open_files_all_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert num_connections(4096) == 4096


async def test_descriptors_are_scarce_where_the_last_ones_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        transport, _ = await asyncio.get_running_loop().connect_accepted_socket(asyncio.Protocol, ours)
        number = ours.fileno()
        monkeypatch.setattr(resource, "getrlimit", lambda _: (number + 1000, number + 1000))
        assert not are_scarce(transport)
        monkeypatch.setattr(resource, "getrlimit", lambda _: (number + 1, number + 1))
        assert are_scarce(transport)
        transport.abort()


async def test_that_nothing_can_be_accepted_is_logged_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, handler = asyncio.get_running_loop(), AcceptErrors()
    passed_on: list[dict[str, Any]] = []
    monkeypatch.setattr(loop, "default_exception_handler", passed_on.append)
    failed = {"message": "socket.accept() out of system resource", "exception": OSError(24, "Too many open files")}
    with capture_logs() as logs:
        for _ in range(1000):
            handler(loop, failed)
        assert [(line["event"], line["reason"]) for line in logs] == [
            ("accept_failed", "[Errno 24] Too many open files")
        ]
    assert passed_on == []
    handler(loop, {"message": "something else"})
    assert passed_on == [{"message": "something else"}]
