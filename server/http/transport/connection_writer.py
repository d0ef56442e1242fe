"""Non-blocking writes to a client's connection, batched: one iteration of the loop makes one write."""

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from server.generation.output_sequence import Delta
from server.streams.stream import Encode

# Called with an error if nothing can be sent any more.
Stop: TypeAlias = Callable[[Exception | None], None]

_FINAL_TEXT = 0x81  # the only frame of a text message


class HasTransport(Protocol):
    """A connection; it has no transport any more once it is lost."""

    @property
    def transport(self) -> asyncio.Transport | None: ...


class ConnectionWriter:
    """Batches non-blocking writes, of whole chunks or frames, to a transport that awaited writes use too."""

    __slots__ = ("_clock", "_connection", "_frame", "_is_closed", "_stops", "_waiting", "last_write_at", "put")

    def __init__(
        self,
        connection: HasTransport,
        frame: Callable[[Sequence[bytes]], bytes],
        is_closed: Callable[[], bool] | None = None,
    ) -> None:
        """`frame` makes the bytes on the wire; `is_closed` forbids to send although the connection is open."""
        self._connection = connection
        self._frame = frame
        self._is_closed = is_closed
        self._clock = asyncio.get_running_loop().time
        self._waiting: list[bytes] = []
        self._stops: set[Stop] = set()
        self.last_write_at = 0.0  # on the loop's clock
        self.put: Callable[[Sequence[bytes]], None] = self._waiting.extend  # adds to what leaves with the next flush

    @property
    def is_ready(self) -> bool:
        """Whether the transport's write buffer is empty, so that the client keeps up."""
        transport = self._connection.transport
        return transport is not None and transport.get_write_buffer_size() == 0

    def follow(self, stop: Stop) -> None:
        """`stop` is called at the end of a flush after which the writer is not ready."""
        self._stops.add(stop)

    def leave(self, stop: Stop) -> None:
        """`stop` is not to be called any more. Idempotent."""
        self._stops.discard(stop)

    def flush(self) -> None:
        """Sends everything that `put` has collected, in one write."""
        waiting = self._waiting
        if not waiting:
            return
        transport = self._connection.transport
        if transport is None or transport.is_closing() or (self._is_closed is not None and self._is_closed()):
            waiting.clear()
            for stop in tuple(self._stops):
                stop(ConnectionResetError("the connection is closed"))
            return
        data = self._frame(waiting)
        waiting.clear()
        self.last_write_at = self._clock()
        transport.write(data)
        if transport.get_write_buffer_size():
            for stop in tuple(self._stops):
                stop(None)


class DeltaSink:
    """Encodes deltas for a connection; see `server.generation.push.Sink`."""

    __slots__ = ("_encode", "_is_busy", "_put", "follow", "leave", "outbox")

    def __init__(self, encode: Encode, writer: ConnectionWriter, is_busy: Callable[[], bool] | None = None) -> None:
        """`is_busy` says that a task waits to write to the same client, which must not be overtaken for ever."""
        self._encode = encode
        self._is_busy = is_busy
        self._put = writer.put
        self.outbox = writer
        self.follow = writer.follow
        self.leave = writer.leave

    @property
    def is_ready(self) -> bool:
        """Whether the client keeps up and no task waits for it."""
        return self.outbox.is_ready and (self._is_busy is None or not self._is_busy())

    def take(self, deltas: Sequence[Delta]) -> None:
        """Encodes the deltas, for the writer's next flush."""
        self._put(self._encode(deltas))


class LogFollower:
    """Sends the events of a log to a connection; see `server.streams.stream_log.Follower`."""

    __slots__ = ("_is_busy", "_writer", "flush", "follow", "frame", "leave", "put")

    def __init__(
        self,
        frame: Callable[[bytes, bytes], bytes],
        writer: ConnectionWriter,
        is_busy: Callable[[], bool] | None = None,
    ) -> None:
        self.frame = frame
        self._writer = writer
        self._is_busy = is_busy
        self.put = writer.put
        self.flush = writer.flush
        self.follow = writer.follow
        self.leave = writer.leave

    @property
    def is_ready(self) -> bool:
        """Whether the client keeps up and no task waits for it."""
        return self._writer.is_ready and (self._is_busy is None or not self._is_busy())


def chunk(pieces: Sequence[bytes]) -> bytes:
    """All pieces as one chunk of an HTTP/1.1 body (RFC 9112, section 7.1). There is at least one byte."""
    data = b"".join(pieces)
    return b"%x\r\n%b\r\n" % (len(data), data)


def text_frames(messages: Sequence[bytes]) -> bytes:
    """Each message, UTF-8, as one text frame of a server, which is not masked (RFC 6455, section 5.2)."""
    return b"".join([_text_frame(message) for message in messages])


def _text_frame(message: bytes) -> bytes:
    length = len(message)
    if length < 126:
        return b"\x81%c%b" % (length, message)
    if length < 1 << 16:
        return struct.pack("!BBH", _FINAL_TEXT, 126, length) + message
    return struct.pack("!BBQ", _FINAL_TEXT, 127, length) + message
