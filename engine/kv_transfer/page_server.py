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
from engine.kv_transfer.peer_wire import Session, claim_of
from engine.peer_transport.deadlines import PeerError
from engine.peer_transport.listener import PeerListener

MOST_PEERS = 64  # connections at once whose clients have proved that they have the key
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
    claim: bytes  # which clients must have the same pages
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
        self._offer: _Offer | None = None
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        self._listener = PeerListener(
            host, port, wire.PROTOCOL, key.encode(), self._welcome, self._claim, name="eagre-pages-listener"
        )

    @property
    def port(self) -> int:
        return self._listener.port

    def offer(self, shelf: Shelf, fingerprint: str, page_bytes: int) -> None:
        """Serves these pages from now on; peers that asked for others are disconnected."""
        with self._lock:
            self._offer = _Offer(shelf, claim_of(fingerprint, page_bytes))
        self._cut()

    def close(self) -> None:
        """Ends every connection, and listens no more. Idempotent."""
        self._is_closed = True
        self._listener.close()
        self._cut()

    def _cut(self) -> None:
        with self._lock:
            connections = tuple(self._open)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _claim(self) -> bytes | None:
        offer = self._offer
        return None if offer is None else offer.claim

    def _welcome(self, connection: socket.socket, session_key: bytes, claim: bytes) -> None:
        """Starts the thread of a client that has the key; raises RuntimeError if the system gives none."""
        with self._lock:
            offer = self._offer
            has_place = len(self._open) < MOST_PEERS and not self._is_closed
            if offer is None or offer.claim != claim or not has_place:
                connection.close()
                return
            self._open.add(connection)
        session = Session(connection, session_key)
        try:
            threading.Thread(
                target=self._serve, args=(connection, session, offer), name="eagre-pages-peer", daemon=True
            ).start()
        except RuntimeError:
            with self._lock:
                self._open.discard(connection)
            raise

    def _serve(self, connection: socket.socket, session: Session, offer: _Offer) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
