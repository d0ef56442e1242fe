"""Pages between two servers over TCP: whole, from holders of the key alone, and no harm from anybody else."""

import socket
import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest

from benchmarks.serving.server_process import free_port
from engine.interface.address import HostAddress
from engine.kv_transfer import page_server, peers
from engine.kv_transfer.disk import DiskConnector
from engine.kv_transfer.page_folder import PageFolder
from engine.kv_transfer.page_server import PageServer
from engine.kv_transfer.peer_wire import PROTOCOL, QUESTION, claim_of
from engine.kv_transfer.peers import Peer, PeerConnector
from engine.peer_transport import handshake, listener
from engine.peer_transport.handshake import GREETING_BYTES
from tests.patience import PATIENCE_S

KEY, OTHER_KEY = "a-key-of-two-servers", "a-key-that-was-guessed"
FINGERPRINT, OTHERS = "a" * 32, "b" * 32
PAGE_BYTES = 1 << 16


def name_of(index):
    return bytes([index]) * 32


def content_of(index):
    return np.random.default_rng(index).integers(0, 256, PAGE_BYTES, np.uint8)


def until(condition, seconds=PATIENCE_S):
    ends_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_at
        time.sleep(0.005)


@pytest.fixture
def quick(monkeypatch):
    for module, name, value in (
        (peers, "POLL_SECONDS", 0.01), (peers, "RETRY_SECONDS", 0.02), (peers, "ANSWER_SECONDS", PATIENCE_S),
        (handshake, "HANDSHAKE_SECONDS", PATIENCE_S), (listener, "HANDSHAKE_SECONDS", PATIENCE_S),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def hurried(quick, monkeypatch):
    """A handshake that is not done within a second is given up, on a busy machine also one between friends."""
    for module in (handshake, listener):
        monkeypatch.setattr(module, "HANDSHAKE_SECONDS", 1.0)


@pytest.fixture
def ending():
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def prefill(tmp_path, quick, ending):
    """A server with three pages, and the folder they are in."""
    folder = DiskConnector(PageFolder(tmp_path / "prefill", 1 << 24), FINGERPRINT, PAGE_BYTES)
    for index in range(3):
        assert folder.store(name_of(index), [content_of(index)])
    server = PageServer("127.0.0.1", 0, KEY)
    ending.callback(server.close)
    server.offer(folder, FINGERPRINT, PAGE_BYTES)
    return server, folder


@pytest.fixture
def follow(ending):
    def make(port, key=KEY, fingerprint=FINGERPRINT):
        peer = Peer(HostAddress("127.0.0.1", port), key, fingerprint, PAGE_BYTES)
        ending.callback(peer.close)
        return peer

    return make


def test_pages_of_another_server_are_held_and_read_whole(prefill, follow, tmp_path):
    server, there = prefill
    here = DiskConnector(PageFolder(tmp_path / "decode", 1 << 24), FINGERPRINT, PAGE_BYTES)
    here.store(name_of(9), [content_of(9)])
    peer = follow(server.port)
    connector = PeerConnector(here, [peer])
    until(lambda: all(connector.holds(name_of(index)) for index in (0, 1, 2, 9)))
    for index in (0, 1, 2, 9):
        assert (connector.load(name_of(index)) == content_of(index)).all()
    assert not connector.holds(name_of(5))
    there.store(name_of(5), [content_of(5)])
    until(lambda: connector.holds(name_of(5)))
    there.forget([name_of(0)])
    assert connector.load(name_of(0)) is None
    assert not connector.holds(name_of(0))
    connector.forget([name_of(1), name_of(9)])
    assert not connector.holds(name_of(1))
    assert not here.holds(name_of(9))
    assert peer.num_damaged == 0


def test_a_connection_that_was_closed_meanwhile_is_made_anew(prefill, follow, monkeypatch):
    server, there = prefill
    peer = follow(server.port)
    until(lambda: name_of(2) in peer.names)
    assert peer.load(name_of(2)) is not None
    monkeypatch.setattr(page_server, "IDLE_SECONDS", 0.05)
    server.offer(there, FINGERPRINT, PAGE_BYTES)  # cuts all connections
    assert peer.load(name_of(1)) is not None


def test_a_page_that_a_slow_server_does_not_give_in_time_is_asked_for_once(quick, follow, ending, monkeypatch):
    asked, released = [], threading.Event()

    class Shelf:
        def names(self):
            return {name_of(0), name_of(1)}

        def load(self, name):
            asked.append(name)
            if name == name_of(1):
                released.wait(PATIENCE_S)
            return content_of(name[0])

    server = PageServer("127.0.0.1", 0, KEY)
    ending.callback(server.close)
    ending.callback(released.set)
    server.offer(Shelf(), FINGERPRINT, PAGE_BYTES)
    peer = follow(server.port)
    assert peer.load(name_of(0)) is not None  # leaves an idle connection
    monkeypatch.setattr(peers, "ANSWER_SECONDS", 0.2)
    assert peer.load(name_of(1)) is None
    assert asked == [name_of(0), name_of(1)]


def test_a_page_server_survives_that_the_system_gives_no_thread(prefill, follow, monkeypatch):
    server, _ = prefill
    start, refused = threading.Thread.start, []

    def refuse_once(thread):
        if thread.name == "eagre-pages-peer" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    peer = follow(server.port)
    until(lambda: name_of(0) in peer.names)
    assert refused


def test_an_address_is_free_again_where_the_system_gives_no_thread_to_listen(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    port = free_port()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="start new thread") as raised:  # it holds what the call held
            PageServer("127.0.0.1", port, KEY)
    PageServer("127.0.0.1", port, KEY).close()
    del raised


def test_what_is_no_name_of_a_host_is_a_lost_peer(quick, ending, caplog):
    peer = Peer(HostAddress("a..b", 1), KEY, FINGERPRINT, PAGE_BYTES)
    ending.callback(peer.close)
    until(lambda: "a..b is no name of a host" in caplog.text)
    assert peer.load(name_of(0)) is None


@pytest.mark.parametrize(("key", "fingerprint"), [(OTHER_KEY, FINGERPRINT), (KEY, OTHERS)])
def test_without_the_key_or_the_same_model_there_is_nothing(prefill, follow, key, fingerprint, caplog):
    server, _ = prefill
    peer = follow(server.port, key, fingerprint)
    until(lambda: "are not used for now" in caplog.text)
    assert not peer.names
    assert peer.load(name_of(0)) is None
    if key == KEY:
        assert "another model" in caplog.text


def test_strangers_get_nothing_and_hold_nothing_up(prefill, hurried, follow):
    server, _ = prefill
    strangers = []
    introduction = PROTOCOL.magic + bytes(32) + claim_of(FINGERPRINT, PAGE_BYTES) + bytes(32)
    for said in (b"", b"GET / HTTP/1.1\r\n\r\n", introduction, introduction + QUESTION.pack(0, 2, name_of(0))):
        stranger = socket.create_connection(("127.0.0.1", server.port))
        stranger.settimeout(PATIENCE_S)
        stranger.sendall(said)
        strangers.append(stranger)
    peer = follow(server.port)
    pages = []
    until(lambda: name_of(0) in peer.names and (page := peer.load(name_of(0))) is not None and not pages.append(page))
    assert (pages[0] == content_of(0)).all()
    for stranger in strangers:
        got = b""
        try:
            while piece := stranger.recv(1 << 16):
                got += piece
        except ConnectionError:
            pass
        assert len(got) == GREETING_BYTES
        stranger.close()


def test_a_thousand_silent_strangers_keep_no_peer_out(prefill, follow, ending, monkeypatch):
    server, _ = prefill
    monkeypatch.setattr(listener, "HANDSHAKE_SECONDS", 600.0)  # so that no deadline frees a place
    for _ in range(1000):
        ending.enter_context(socket.create_connection(("127.0.0.1", server.port)))
    peer = follow(server.port)
    until(lambda: name_of(0) in peer.names)
    assert (peer.load(name_of(0)) == content_of(0)).all()


class Meddler:
    """Carries bytes between a peer and a server, and changes what the server says."""

    def __init__(self, port, change):
        self._port, self._change = port, change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def close(self):
        self._listener.close()

    def _run(self):
        while True:
            try:
                outer, _ = self._listener.accept()
            except OSError:
                return
            inner = socket.create_connection(("127.0.0.1", self._port))
            for source, sink, change in ((outer, inner, bytes), (inner, outer, self._change)):
                threading.Thread(target=self._carry, args=(source, sink, change), daemon=True).start()

    def _carry(self, source, sink, change):
        try:
            while data := source.recv(1 << 12):
                sink.sendall(change(data))
        except OSError:
            pass
        finally:
            for end in (source, sink):
                end.close()


def flip(data):
    """Changes what is as long as a part of a page, and lets the handshake and the names pass."""
    return data if len(data) < 4096 else data[:100] + bytes([data[100] ^ 4]) + data[101:]


def test_a_changed_answer_is_noticed(prefill, follow, ending):
    server, _ = prefill
    meddler = Meddler(server.port, flip)
    ending.callback(meddler.close)
    peer = follow(meddler.port)
    until(lambda: name_of(0) in peer.names)
    assert peer.load(name_of(0)) is None
    assert peer.num_damaged == 1
    assert name_of(0) not in peer.names


@pytest.mark.parametrize(
    "said", [b"", b"x" * 8, b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9, PROTOCOL.magic + bytes(32 + 99)]
)
def test_a_server_that_is_none_is_left_in_time(hurried, follow, ending, said, caplog):
    listener = ending.enter_context(socket.create_server(("127.0.0.1", 0)))
    accepted = []

    def answer():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            accepted.append(connection)  # which stays open, and silent
            connection.sendall(said)

    threading.Thread(target=answer, daemon=True).start()
    peer = follow(listener.getsockname()[1])
    began = time.monotonic()
    assert peer.load(name_of(0)) is None
    assert time.monotonic() - began < PATIENCE_S / 2
    until(lambda: "are not used for now" in caplog.text)
    assert not peer.names
    peer.close()
    for connection in accepted:
        connection.close()
