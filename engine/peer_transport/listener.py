"""A listener that hands over a connection once its client has proved that it has the key.

One thread holds the handshakes of all clients, without waiting for any, so a stranger costs a descriptor and a few
hundred bytes. There are few places for strangers. One that comes when all are taken gets that of the oldest of the
address which has the most, so silent strangers push out each other, and a client that proves itself at once is in time.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.interface.client_address import client_of, makes_room, parse_address
from engine.interface.log_interval import LogInterval
from engine.peer_transport.deadlines import PeerError
from engine.peer_transport.handshake import HANDSHAKE_SECONDS, Challenge, OtherClaim, Protocol

MOST_STRANGERS = 32  # at once, of all addresses
MOST_OF_ADDRESS = 16  # of them
MOST_ACCEPTED = 500  # in a second: a flood of connections costs this process no more than that
_BACKLOG = 256
_PAUSE_SECONDS = 0.1  # without accepting: after too many in a second, or without descriptors

_log = logging.getLogger(__name__)

# Takes a connection that is blocking again, the session's key, and the claim that the client has proved.
OnPeer = Callable[[socket.socket, bytes, bytes], None]


@dataclass(eq=False)
class _Stranger:
    """A client that has not proved anything yet."""

    connection: socket.socket
    address: str
    challenge: Challenge
    ends_at: float
    introduction: bytearray = field(default_factory=bytearray)


class PeerListener:
    """Accepts connections in a thread of its own, and authenticates their clients."""

    def __init__(
        self, host: str, port: int, protocol: Protocol, key: bytes, on_peer: OnPeer,
        claim: Callable[[], bytes | None] = lambda: b"", name: str = "eagre-peers",
    ) -> None:  # fmt: skip
        """Listens.

        Args:
            on_peer: is called in the thread, must not wait, and closes the connection in the end. Where it raises
                RuntimeError (the system gives no thread), the listener closes it.
            claim: what a client must claim now; None: all are sent away.
            name: of the thread.

        Raises:
            OSError: the address is taken or invalid.
            RuntimeError: the system gives no thread.
        """
        self._protocol = protocol
        self._key = key
        self._on_peer = on_peer
        self._claim = claim
        self._strangers: dict[socket.socket, _Stranger] = {}  # the oldest first
        self._is_closed = False
        self._second = 0.0  # when the present count of accepted connections began
        self._num_accepted = 0
        self._resumes_at: float | None = None  # None: it accepts
        self._num_refused = 0  # clients without the key since the last line in the log
        self._log_interval = LogInterval()
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._listener = socket.create_server(found[4][:2], family=found[0], backlog=_BACKLOG)
        try:
            self._listener.setblocking(False)
            self._waker, self._woken = socket.socketpair()
        except BaseException:
            self._listener.close()
            raise
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except BaseException:  # the system gives no thread
            for each in (self._listener, self._waker, self._woken):
                each.close()
            raise

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Ends the connections of strangers, and listens no more. Idempotent."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # ---------------------------------------------------------------- in the thread

    def _run(self) -> None:
        with selectors.DefaultSelector() as self._selector:
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._selector.register(self._woken, selectors.EVENT_READ)
            while not self._is_closed:
                for key, _ in self._selector.select(self._patience()):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj in self._strangers:
                        self._read(self._strangers[key.fileobj])
                self._end_late()
            for stranger in tuple(self._strangers.values()):
                self._drop(stranger)
        for each in (self._listener, self._waker, self._woken):
            each.close()

    def _patience(self) -> float | None:
        """Seconds until something is due."""
        due = [stranger.ends_at for stranger in self._strangers.values()][:1]  # all have the same time
        due += [] if self._resumes_at is None else [self._resumes_at]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _end_late(self) -> None:
        now = time.monotonic()
        for stranger in [stranger for stranger in self._strangers.values() if stranger.ends_at <= now]:
            self._drop(stranger)
        if self._resumes_at is not None and self._resumes_at <= now:
            self._resumes_at = None
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _pause(self) -> None:
        self._selector.unregister(self._listener)
        self._resumes_at = time.monotonic() + _PAUSE_SECONDS

    def _accept(self) -> None:
        now = time.monotonic()
        if now - self._second > 1.0:
            self._second, self._num_accepted = now, 0
        if self._num_accepted >= MOST_ACCEPTED:
            self._pause()
            return
        try:
            connection, address = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._pause()
            return
        self._num_accepted += 1
        if self._claim() is None:
            connection.close()
            return
        client = client_of(parse_address(address[0]))
        strangers = list(self._strangers.values())
        clients = [stranger.address for stranger in strangers]
        loser = makes_room(clients, client, most=MOST_STRANGERS, most_of_each=MOST_OF_ADDRESS)
        if loser is not None:
            self._drop(strangers[loser])
        stranger = _Stranger(connection, client, Challenge(self._protocol, self._key), now + HANDSHAKE_SECONDS)
        try:
            connection.setblocking(False)
            if connection.send(stranger.challenge.greeting) == len(stranger.challenge.greeting):
                self._selector.register(connection, selectors.EVENT_READ)
                self._strangers[connection] = stranger
                return
        except OSError:
            pass  # it is gone
        connection.close()

    def _read(self, stranger: _Stranger) -> None:
        missing = self._protocol.introduction_bytes - len(stranger.introduction)
        try:
            piece = stranger.connection.recv(missing)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        stranger.introduction += piece
        if not piece:
            self._drop(stranger)
        elif len(piece) == missing:
            self._judge(stranger)

    def _judge(self, stranger: _Stranger) -> None:
        claim = self._claim()
        try:
            if claim is None:
                raise PeerError("nothing is offered now")
            answer, session_key = stranger.challenge.verify(bytes(stranger.introduction), claim)
            stranger.connection.send(answer)  # few bytes into an empty buffer
            if session_key is None:
                raise OtherClaim("it claims something else")
        except OSError as error:
            self._log_refusal(stranger.address, error)
            self._drop(stranger)
            return
        self._forget(stranger)
        try:
            stranger.connection.setblocking(True)
            self._on_peer(stranger.connection, session_key, claim)
        except (OSError, RuntimeError):  # the system gives no thread now; the peer comes back
            stranger.connection.close()

    def _log_refusal(self, address: str, error: OSError) -> None:
        self._num_refused += 1
        if self._log_interval.is_due():
            _log.warning(
                "port %d: connections that were ended because of their handshake: %d, the last one of %s: %s",
                self.port, self._num_refused, address, error,
            )  # fmt: skip
            self._num_refused = 0

    def _forget(self, stranger: _Stranger) -> None:
        del self._strangers[stranger.connection]
        self._selector.unregister(stranger.connection)

    def _drop(self, stranger: _Stranger) -> None:
        self._forget(stranger)
        stranger.connection.close()
