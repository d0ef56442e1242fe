"""ZMTP 3.0, the protocol of ZeroMQ over TCP, as far as a server of messages needs it: https://rfc.zeromq.org/spec/23.

libzmq holds whatever a client sends until a message is whole, whatever its number of frames. Here a client that sends
more than a request has bytes is disconnected.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

GREETING_BYTES = 64
MAX_FRAME_BYTES = 512  # of a client: a topic, a sequence number, a command
MAX_FRAMES = 8  # of a message of a client

_SIGNATURE_BYTES = 10
_MECHANISM = b"NULL".ljust(20, b"\0")
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\3\0" + _MECHANISM + bytes(32)
_MORE, _LONG, _COMMAND = 1, 2, 4
_PING_CONTEXT = 7  # after the length of the name, the name and the time to live


class ProtocolError(Exception):
    """A client sends what is no ZMTP, or more than is allowed; the message says what."""


class Received(NamedTuple):
    """A command with its name as the first frame, or a message."""

    is_command: bool
    frames: tuple[bytes, ...]


class _State(Enum):
    GREETING = "greeting"
    HANDSHAKE = "handshake"
    TRAFFIC = "traffic"


class Decoder:
    """Reads what a client sends; it never holds more than MAX_FRAMES frames of MAX_FRAME_BYTES."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._frames: list[bytes] = []
        self._state = _State.GREETING

    @property
    def is_ready(self) -> bool:
        """Whether the handshake is over."""
        return self._state is _State.TRAFFIC

    def feed(self, data: bytes) -> Iterator[Received]:
        """The commands and messages that are whole now, the end of the handshake aside; raises ProtocolError."""
        self._buffer += data
        if self._state is _State.GREETING:
            if bytes(self._buffer[:1]) not in (b"", b"\xff") or bytes(self._buffer[9:10]) not in (b"", b"\x7f"):
                raise ProtocolError("it speaks another protocol")
            if len(self._buffer) < GREETING_BYTES:
                return
            version, mechanism = self._buffer[10], self._buffer[12:32]
            if version < 3 or mechanism != _MECHANISM:
                raise ProtocolError("it speaks another version of ZMTP, or wants another security mechanism than NULL")
            del self._buffer[:GREETING_BYTES]
            self._state = _State.HANDSHAKE
        while (frame := self._take_frame()) is not None:
            flags, body = frame
            if flags & _COMMAND:
                if not body or len(body) < 1 + body[0] or flags & _MORE or self._frames:
                    raise ProtocolError("a command is malformed")
                name, rest = bytes(body[1 : 1 + body[0]]), bytes(body[1 + body[0] :])
                if self._state is _State.HANDSHAKE:
                    if name != b"READY":
                        raise ProtocolError("the handshake has another command than READY")
                    self._state = _State.TRAFFIC
                else:
                    yield Received(True, (name, rest))
                continue
            if self._state is _State.HANDSHAKE:
                raise ProtocolError("a message comes before the handshake")
            self._frames.append(body)
            if not flags & _MORE:
                frames, self._frames = tuple(self._frames), []
                yield Received(False, frames)
            elif len(self._frames) >= MAX_FRAMES:
                raise ProtocolError(f"a message has more than {MAX_FRAMES} frames")

    def _take_frame(self) -> tuple[int, bytes] | None:
        """The flags and the body of the next frame, if it is whole."""
        if len(self._buffer) < 2:
            return None
        flags = self._buffer[0]
        head = 9 if flags & _LONG else 2
        if len(self._buffer) < head:
            return None
        size = int.from_bytes(self._buffer[1:head], "big")
        if flags > 7 or size > MAX_FRAME_BYTES:
            raise ProtocolError(f"a frame of {size} bytes, where {MAX_FRAME_BYTES} are the most")
        if len(self._buffer) < head + size:
            return None
        body = bytes(self._buffer[head : head + size])
        del self._buffer[: head + size]
        return flags, body


def ready(socket_type: bytes) -> bytes:
    """The command that ends the handshake of the NULL mechanism."""
    return _command(b"READY", b"\x0bSocket-Type" + len(socket_type).to_bytes(4, "big") + socket_type)


def pong(ping: bytes) -> bytes:
    """The answer to a PING with this content; raises ProtocolError."""
    if not 2 <= len(ping) <= 18:
        raise ProtocolError("a PING is malformed")
    return _command(b"PONG", ping[2:])


def message(*frames: bytes) -> list[bytes]:
    """The pieces of a message to send; long frames are not copied."""
    pieces = []
    for index, frame in enumerate(frames):
        flags = (_MORE if index < len(frames) - 1 else 0) | (_LONG if len(frame) > 255 else 0)
        pieces += [bytes([flags]) + len(frame).to_bytes(8 if flags & _LONG else 1, "big"), frame]
    return [piece for piece in pieces if piece]


def _command(name: bytes, content: bytes) -> bytes:
    body = bytes([len(name)]) + name + content
    return bytes([_COMMAND, len(body)]) + body
