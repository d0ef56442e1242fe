"""Sending and receiving on a blocking socket within a time for the whole message."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence


class PeerError(OSError):
    """The peer violates the protocol or lacks the key; the message says how."""


def send(connection: socket.socket, pieces: Sequence[bytes | memoryview], seconds: float) -> None:
    """Sends all pieces; raises OSError if that takes longer than `seconds`."""
    ends_at = time.monotonic() + seconds
    for piece in pieces:
        connection.settimeout(_left(ends_at))
        connection.sendall(piece)


def receive(connection: socket.socket, size: int, seconds: float) -> bytearray:
    """Exactly so many bytes; raises OSError if they do not come within `seconds`."""
    content, ends_at = bytearray(size), time.monotonic() + seconds
    rest = memoryview(content)
    while rest:
        connection.settimeout(_left(ends_at))
        num_read = connection.recv_into(rest)
        if num_read == 0:
            raise PeerError("the connection has ended")
        rest = rest[num_read:]
    return content


def _left(ends_at: float) -> float:
    left = ends_at - time.monotonic()
    if left <= 0:
        raise TimeoutError("it was not done in time")
    return left
