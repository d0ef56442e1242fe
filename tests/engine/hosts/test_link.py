"""The wire between hosts, without JAX: whole messages, silence, and connections that end."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from engine.border.types import HostLost
from engine.hosts.link import Link
from engine.hosts.messages import HEADER, Kind, frame, pack_facts, unpack_facts

MAX_BYTES = 1 << 24


@pytest.fixture
def ends() -> Iterator[tuple[Link, Link]]:
    left, right = socket.socketpair(socket.AF_UNIX)
    left.close(), right.close()
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far = server.accept()[0]
    links = Link(near, "the far end", MAX_BYTES), Link(far, "the near end", MAX_BYTES)
    yield links
    for link in links:
        link.close()


def peer_socket() -> tuple[Link, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        return Link(near, "host 1 of 2", MAX_BYTES), server.accept()[0]
