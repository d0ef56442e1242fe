"""One end of a connection between leader and follower: messages, heartbeats, and detection of a lost peer."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

from engine.interface.types import HostLost
from engine.multihost.messages import HEADER, Kind, Message, frame

HEARTBEAT_SECONDS = 1.0
PATIENCE_SECONDS = 4.0  # silence after which the other end is lost
LOADING_PATIENCE_SECONDS = (
    60.0  # the same while models are loaded, when one call may hold the interpreter lock for long
)
_BUFFER_BYTES = 4 << 20  # of the system, for what is sent: several steps, so that `send` finds room
_HEARTBEAT = frame(Kind.HEARTBEAT)


class Link:
    """A connection with two threads of its own, one that reads and one that sends heartbeats and unsent messages.

    `send` never waits for the peer: what the system does not take at once is sent by the thread.
    """

    def __init__(self, connection: socket.socket, peer: str, max_bytes: int) -> None:
        """Takes the connection over and starts the threads.

        Args:
            peer: the name of the other end in messages.
            max_bytes: of a message from the peer.
        """
        self.peer = peer
        self.patience = LOADING_PATIENCE_SECONDS
        self._connection = connection
        self._max_bytes = max_bytes
        self._inbox: SimpleQueue[Message | HostLost] = SimpleQueue()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._backlog: deque[bytes] = deque()  # the first is being sent by the thread
        self._lost: HostLost | None = None
        self._on_lost: Callable[[HostLost], None] | None = None
        self._is_closed = False
        connection.setblocking(True)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        self._reader = threading.Thread(target=self._read, name="eagre-host-reader", daemon=True)
        self._reader.start()
        threading.Thread(target=self._write, name="eagre-host-writer", daemon=True).start()

    @property
    def lost(self) -> HostLost | None:
        """Why the peer is lost; None while it is there."""
        return self._lost

    def watch(self, on_lost: Callable[[HostLost], None]) -> None:
        """Calls `on_lost` once, from any thread, when the peer is lost; now, if it is already."""
        with self._lock:
            self._on_lost = on_lost
            lost = self._lost
        if lost is not None:
            on_lost(lost)

    def send(self, message: bytes) -> None:
        """Sends what `frame` has made; returns at once. A loss is reported by `watch` and `receive`."""
        with self._lock:
            if self._is_closed or self._lost is not None:
                return
            num_sent = 0
            if not self._backlog:
                with contextlib.suppress(OSError):  # no room; the threads report an error
                    num_sent = self._connection.send(message, socket.MSG_DONTWAIT)
            if num_sent < len(message):
                self._backlog.append(message[num_sent:])
                self._changed.notify_all()

    def receive(self, seconds: float | None = None) -> Message:
        """The next message of the peer, heartbeats aside.

        Args:
            seconds: how long to wait; None: without a limit.

        Raises:
            HostLost: the peer is lost.
            TimeoutError: it has sent nothing in time.
        """
        try:
            message = self._inbox.get(timeout=seconds)
        except Empty:
            raise TimeoutError(f"{self.peer} has not answered within {seconds:g} s") from None
        if isinstance(message, HostLost):
            self._inbox.put(message)  # for later calls
            raise message
        return message

    def close(self, seconds: float = 0.0) -> None:
        """Ends the connection, after at most so many seconds for the peer to receive everything and end."""
        ends_at = time.monotonic() + seconds
        with self._lock:
            while self._backlog and self._lost is None and self._changed.wait(max(0.0, ends_at - time.monotonic())):
                pass
            self._is_closed = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
        self._reader.join(max(0.0, ends_at - time.monotonic()))
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._connection.close()

    # ---------------------------------------------------------------- in threads of the link

    def _read(self) -> None:
        """Reads until the peer is lost, or sends END.

        An END without a reason is no loss. The connection stays open then until this side closes it or its process
        ends, because the peer waits for that (`close`).
        """
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._connection, selectors.EVENT_READ)
                while (message := self._next(selector)).kind is not Kind.END:
                    if message.kind is not Kind.HEARTBEAT:
                        self._inbox.put(message)
            self._inbox.put(message)
            if not message.content:
                return
            self._lose(f"it has ended: {message.content.decode()}")
        except TimeoutError:
            self._lose(f"it has not been heard of for {self.patience:g} s")
        except ValueError as error:
            self._lose(f"what it sends cannot be read: {error}")
        except OSError:
            self._lose("its connection has ended")
        self._connection.close()

    def _next(self, selector: selectors.BaseSelector) -> Message:
        """The next message; raises ValueError if the bytes are no message, and as `_exactly`."""
        size, kind = HEADER.unpack(self._exactly(HEADER.size, selector))
        if size > self._max_bytes:
            raise ValueError(f"a message of {size} bytes, where {self._max_bytes} are the most")
        return Message(Kind(kind), self._exactly(size, selector))

    def _exactly(self, size: int, selector: selectors.BaseSelector) -> bytes:
        """Exactly so many bytes; raises TimeoutError if the peer is silent for too long, and OSError."""
        content = bytearray(size)
        rest = memoryview(content)
        while rest:
            if not selector.select(self.patience):
                raise TimeoutError
            count = self._connection.recv_into(rest)
            if count == 0:
                raise ConnectionResetError
            rest = rest[count:]
        return bytes(content)

    def _write(self) -> None:
        while True:
            with self._lock:
                if not self._backlog and not self._is_closed:
                    self._changed.wait(HEARTBEAT_SECONDS)
                if self._lost is not None or (self._is_closed and not self._backlog):
                    return
                if not self._backlog:
                    self._backlog.append(_HEARTBEAT)
                message = self._backlog[0]
            try:
                self._connection.sendall(message)
            except OSError:
                self._lose("its connection has ended")
                return
            with self._lock:
                self._backlog.popleft()
                self._changed.notify_all()

    def _lose(self, reason: str) -> None:
        with self._lock:
            if self._lost is not None or self._is_closed:
                return
            self._lost = lost = HostLost(f"{self.peer} is lost: {reason}")
            on_lost = self._on_lost
            self._changed.notify_all()
        self._inbox.put(lost)
        if on_lost is not None:
            on_lost(lost)
