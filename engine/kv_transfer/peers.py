"""Pages from other servers: a thread follows the names that each peer has, and pages are read from it over TCP."""

import logging
import socket
import threading
from collections.abc import Sequence

import numpy as np

from engine.interface.address import HostAddress
from engine.interface.background import stand_back
from engine.interface.log_interval import LogInterval
from engine.kv_transfer import peer_wire as wire
from engine.kv_transfer.disk import DiskConnector
from engine.kv_transfer.peer_wire import DamagedAnswer, Session, introduce
from engine.peer_transport.deadlines import PeerError

CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 3.0  # for a whole answer, however slowly it comes
POLL_SECONDS = 0.2  # between two questions for new names
RETRY_SECONDS = 5.0  # after a peer was lost or refused
MOST_KNOWN = 1 << 20  # names of one peer; further ones are passed over
_MOST_IDLE = 2  # connections for pages: as many as threads that load

_log = logging.getLogger(__name__)


class Peer:
    """One other server. A thread follows the names of its pages; while it is unreachable, it has none."""

    def __init__(self, address: HostAddress, key: str, fingerprint: str, page_bytes: int) -> None:
        self.names: set[bytes] = set()
        self.num_damaged = 0  # answers that were not what the holder of the key has sent
        self._address = address
        self._key = key.encode()
        self._fingerprint = fingerprint
        self._page_bytes = page_bytes
        self._idle: list[Session] = []
        self._lock = threading.Lock()
        self._ending = threading.Event()
        threading.Thread(target=self._follow, name="eagre-pages-peers", daemon=True).start()

    def load(self, name: bytes) -> np.ndarray | None:
        """The content of a page, uint8[page_bytes]; None if it is unavailable."""
        content = None
        try:
            content = self._load(name)
        except DamagedAnswer:
            self.num_damaged += 1
        except OSError as error:
            _log.info("a page of %s was not read: %s", self._address, error)
        if content is None:
            self.names.discard(name)
        return content

    def close(self) -> None:
        """Ends the connections, and the thread soon. Idempotent."""
        self._ending.set()
        with self._lock:
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()

    def _connect(self) -> Session:
        """A new session; raises OSError."""
        try:
            connection = socket.create_connection((self._address.host, self._address.port), CONNECT_SECONDS)
        except UnicodeError as error:  # of the codec of names of hosts
            raise PeerError(f"{self._address.host} is no name of a host") from error
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return introduce(connection, self._key, self._fingerprint, self._page_bytes)
        except BaseException:
            connection.close()
            raise

    def _load(self, name: bytes) -> np.ndarray | None:
        """As `load`; raises OSError if there was no answer, or a damaged one."""
        while True:
            with self._lock:
                idle = self._idle.pop() if self._idle else None
            session = idle or self._connect()
            try:
                content = self._read_page(session, name)
            except (DamagedAnswer, TimeoutError):
                session.close()
                raise
            except OSError:
                session.close()
                if idle is None:
                    raise
                continue  # the other end has closed an idle connection
            self._give_back(session)
            return content

    def _give_back(self, session: Session) -> None:
        with self._lock:
            if len(self._idle) < _MOST_IDLE and not self._ending.is_set():
                self._idle.append(session)
                return
        session.close()

    def _read_page(self, session: Session, name: bytes) -> np.ndarray | None:
        question = _ask(session, wire.PAGE, name)
        head = bytes(session.receive(wire.PAGE_HEAD.size, ANSWER_SECONDS))
        size, digest = wire.PAGE_HEAD.unpack(head)
        if size not in (0, self._page_bytes):
            raise PeerError(f"a page has {size} bytes in the place of {self._page_bytes}")
        content = session.receive(size, ANSWER_SECONDS)
        session.check(digest, question, [head[: -wire.DIGEST_BYTES], memoryview(content)])
        return np.frombuffer(content, np.uint8) if size else None

    def _follow(self) -> None:
        stand_back()
        log_interval = LogInterval()
        while not self._ending.is_set():
            try:
                session = self._connect()
                try:
                    self._follow_names(session)
                finally:
                    session.close()
            except OSError as error:
                self.num_damaged += isinstance(error, DamagedAnswer)
                if not self._ending.is_set() and log_interval.is_due():
                    _log.warning("pages of %s are not used for now: %s", self._address, error)
            self.names = set()
            self._ending.wait(RETRY_SECONDS)

    def _follow_names(self, session: Session) -> None:
        """Follows the names of the peer's pages until the end; raises OSError."""
        list_id = num_known = 0
        while not self._ending.is_set():
            question = _ask(session, wire.NAMES, wire.SINCE.pack(list_id, num_known))
            head = bytes(session.receive(wire.NAMES_HEAD.size, ANSWER_SECONDS))
            told_id, now_known, num_names, digest = wire.NAMES_HEAD.unpack(head)
            if num_names > wire.MOST_NAMES:
                raise PeerError(f"an answer has {num_names} names; at most {wire.MOST_NAMES} are allowed")
            body = bytes(session.receive(num_names * wire.NAME_BYTES, ANSWER_SECONDS))
            session.check(digest, question, [head[: -wire.DIGEST_BYTES], body])
            if told_id != list_id:
                self.names = set()
            list_id, num_known = told_id, now_known
            if len(self.names) + num_names <= MOST_KNOWN:
                self.names.update(body[at : at + wire.NAME_BYTES] for at in range(0, len(body), wire.NAME_BYTES))
            if num_names < wire.MOST_NAMES:
                self._ending.wait(POLL_SECONDS)


class PeerConnector:
    """A `KVConnector` of a local folder, and of peers where it lacks a page. Pages are stored in the folder alone."""

    def __init__(self, folder: DiskConnector, peers: Sequence[Peer]) -> None:
        self._folder = folder
        self._peers = peers

    def holds(self, name: bytes) -> bool:
        return self._folder.holds(name) or any(name in peer.names for peer in self._peers)

    def load(self, name: bytes) -> np.ndarray | None:
        """As `KVConnector.load`, from the folder or the first peer that has it."""
        content = self._folder.load(name) if self._folder.holds(name) else None
        for peer in self._peers:
            if content is None and name in peer.names:
                content = peer.load(name)
        return content

    def store(self, name: bytes, content: Sequence[np.ndarray]) -> bool:
        return self._folder.store(name, content)

    def touch(self, names: Sequence[bytes]) -> None:
        self._folder.touch([name for name in names if self._folder.holds(name)])

    def forget(self, names: Sequence[bytes]) -> None:
        """As `KVConnector.forget`; peers keep their pages."""
        self._folder.forget(names)
        for peer in self._peers:
            peer.names.difference_update(names)

    def clear(self) -> None:
        """As `KVConnector.clear`, of the folder."""
        self._folder.clear()

    def refresh(self) -> None:
        self._folder.refresh()


def _ask(session: Session, kind: int, subject: bytes) -> bytes:
    question = wire.QUESTION.pack(session.num_asked, kind, subject)
    session.num_asked += 1
    session.send([question], ANSWER_SECONDS)
    return question
