"""A TCP server that lets other servers with the shared key read this engine's stored pages."""

import contextlib
import logging
import secrets
import socket
import threading
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from engine.kv_transfer import peer_wire as wire
from engine.kv_transfer.peer_wire import PeerError, Session, greet

MOST_CONNECTIONS = 64  # open at once, those of strangers included
IDLE_SECONDS = 30.0  # without a question; a peer asks several times a second
ANSWER_SECONDS = 5.0  # for a peer to take an answer
_SLACK_NAMES = 4096  # of pages that are gone, which may stay in the list

_log = logging.getLogger(__name__)


class Shelf(Protocol):
    """The source of the pages."""

    def names(self) -> set[bytes]:
        """The names of the pages that are there."""

    def load(self, name: bytes) -> np.ndarray | None:
        """As `KVConnector.load`."""


@dataclass(eq=False)
class _Offer:
    """The pages of one fingerprint, and their names in the order in which they were seen."""

    shelf: Shelf
    fingerprint: str
    page_bytes: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    list_id: int = 0
    listed: list[bytes] = field(default_factory=list)
    seen: set[bytes] = field(default_factory=set)

    def names_since(self, list_id: int, num_known: int) -> tuple[int, int, list[bytes]]:
        """The next names for a peer that knows so many of a list; a peer with another list gets all."""
        with self.lock:
            there = self.shelf.names()
            if len(self.listed) > 2 * len(there) + _SLACK_NAMES or not self.list_id:
                self.list_id, self.listed, self.seen = secrets.randbits(63) + 1, [], set()
            self.listed += there - self.seen  # a page that was removed and stored again is listed again
            self.seen = there
            start = min(num_known, len(self.listed)) if list_id == self.list_id else 0
            told = self.listed[start : start + wire.MOST_NAMES]
            return self.list_id, start + len(told), told


class PageServer:
    """Listens, with one thread for each connection. Peers cannot make it hold more than a fixed size."""

    def __init__(self, host: str, port: int, key: str) -> None:
        """Raises OSError if the address is taken or invalid."""
        self._key = key.encode()
        self._offer: _Offer | None = None
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=MOST_CONNECTIONS)
        try:
            threading.Thread(target=self._accept, name="eagre-pages-door", daemon=True).start()
        except BaseException:  # the system gives no thread
            self._listener.close()
            raise

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def offer(self, shelf: Shelf, fingerprint: str, page_bytes: int) -> None:
        """Serves these pages from now on; peers that asked for others are disconnected."""
        with self._lock:
            self._offer = _Offer(shelf, fingerprint, page_bytes)
        self._cut()

    def close(self) -> None:
        """Ends every connection, and listens no more. Idempotent."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        self._cut()

    def _cut(self) -> None:
        with self._lock:
            connections = tuple(self._open)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._is_closed:
                    return
                threading.Event().wait(1.0)  # there is no file descriptor now
                continue
            with self._lock:
                is_welcome = len(self._open) < MOST_CONNECTIONS and self._offer is not None and not self._is_closed
                if is_welcome:
                    self._open.add(connection)
            if is_welcome:
                try:
                    threading.Thread(
                        target=self._serve, args=(connection,), name="eagre-pages-peer", daemon=True
                    ).start()
                    continue
                except RuntimeError:  # the system gives no thread now; the peer comes back
                    with self._lock:
                        self._open.discard(connection)
            connection.close()

    def _serve(self, connection: socket.socket) -> None:
        offer = self._offer
        try:
            assert offer is not None
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            session = greet(connection, self._key, offer.fingerprint, offer.page_bytes)
            while self._offer is offer:
                _answer(session, offer)
        except PeerError as error:
            _log.info("a peer of the page server is let go: %s", error)
        except OSError:
            pass  # it is gone, or says nothing
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()


def _answer(session: Session, offer: _Offer) -> None:
    """Answers one request; raises OSError if the peer has left or sends an invalid one."""
    question = bytes(session.receive(wire.QUESTION.size, IDLE_SECONDS))
    number, kind, subject = wire.QUESTION.unpack(question)
    if number != session.num_asked:
        raise PeerError("a question has another number than the next")
    session.num_asked += 1
    if kind == wire.NAMES:
        list_id, num_known, names = offer.names_since(*wire.SINCE.unpack(subject))
        body = b"".join(names)
        told = wire.NAMES_HEAD.pack(list_id, num_known, len(names), b"")[: -wire.DIGEST_BYTES]
        session.send([told, session.digest(question, [told, body]), body], ANSWER_SECONDS)
    elif kind == wire.PAGE:
        content = offer.shelf.load(subject)
        page = memoryview(b"") if content is None else content.data
        told = wire.PAGE_HEAD.pack(page.nbytes, b"")[: -wire.DIGEST_BYTES]
        session.send([told, session.digest(question, [told, page]), page], ANSWER_SECONDS)
    else:
        raise PeerError(f"a question is of the kind {kind}")
