"""The connection between two hosts, without JAX: whole messages, a sender that never waits, and ends that are lost."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from engine.interface.types import HostLost
from engine.multihost import link as link_module
from engine.multihost.link import LOADING_PATIENCE_SECONDS, Link
from engine.multihost.messages import (
    FOLLOWER,
    HEADER,
    LEADER,
    TAG_BYTES,
    Kind,
    MessageTags,
    digest_of,
    frame,
    pack_facts,
    unpack_facts,
)
from tests.patience import PATIENCE_S

SESSION_KEY = b"a key of one session"


class Sealing:
    """The messages of the bare end, with the tags of a follower."""

    def __init__(self) -> None:
        self._tags = MessageTags(SESSION_KEY, FOLLOWER)

    def __call__(self, message: bytes) -> bytes:
        return message + self._tags.next(digest_of(message))


@pytest.fixture
def sealed() -> Sealing:
    return Sealing()


def sealed_by_leader(first: bytes) -> bytes:
    """The first message of the link with its tag."""
    return first + MessageTags(SESSION_KEY, LEADER).next(digest_of(first))


@pytest.fixture
def heartless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links that are made from now on send no heartbeats."""
    monkeypatch.setattr(link_module, "HEARTBEAT_SECONDS", 10 * PATIENCE_S)


class Clock:
    """The time that passes for links which wait for their other ends."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits_since = -1.0  # when a link has begun to wait

    def selector(self) -> selectors.BaseSelector:
        clock = self

        class Selector(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
                assert timeout is not None
                began = clock.waits_since = clock.now
                while not (found := super().select(0.005)) and clock.now - began < timeout:
                    pass
                return found

        return Selector()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """It holds for links that are made from now on."""
    clock = Clock()
    names = SimpleNamespace(DefaultSelector=clock.selector, EVENT_READ=selectors.EVENT_READ)
    monkeypatch.setattr(link_module, "selectors", names)
    return clock


@pytest.fixture
def ends() -> Iterator[tuple[Link, socket.socket]]:
    """A link, and the bare socket at its other end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far = server.accept()[0]
    link = Link(near, "host 1 of 2", 1 << 20, SESSION_KEY, LEADER, FOLLOWER)
    with closing(link), far:
        yield link, far


def test_messages_arrive_whole_and_in_order_however_they_are_cut(
    ends: tuple[Link, socket.socket], sealed: Sealing
) -> None:
    link, far = ends
    messages = (frame(Kind.READY), frame(Kind.HEARTBEAT), frame(Kind.OFFER, b"abc", memoryview(b"def")))
    sent = b"".join(map(sealed, messages))
    for index in range(len(sent)):
        far.sendall(sent[index : index + 1])
    assert link.receive(PATIENCE_S) == (Kind.READY, b"")
    assert link.receive(PATIENCE_S) == (Kind.OFFER, b"abcdef")


def test_a_sender_never_waits_for_an_end_that_does_not_read(ends: tuple[Link, socket.socket]) -> None:
    link, far = ends
    content = bytes(range(256)) * 4096
    started = time.monotonic()
    for _ in range(64):  # 64 MiB, more than any buffer of the system has
        link.send(frame(Kind.STEP, content))
    assert time.monotonic() - started < LOADING_PATIENCE_SECONDS / 2  # after all of which the silent end is lost

    def read(size: int) -> bytes:
        pieces = bytearray()
        while len(pieces) < size:
            pieces += far.recv(size - len(pieces))
        return bytes(pieces)

    num_steps = 0
    while num_steps < 64:
        size, kind = HEADER.unpack(read(HEADER.size))
        if kind == Kind.STEP:
            assert read(size) == content
            num_steps += 1
        else:
            read(size)
        read(TAG_BYTES)


def test_a_connection_that_ends_is_noticed_at_once(ends: tuple[Link, socket.socket]) -> None:
    link, far = ends
    told: list[HostLost] = []
    noticed = threading.Event()
    link.watch(lambda error: (told.append(error), noticed.set()))
    far.close()
    assert noticed.wait(PATIENCE_S)
    assert str(told[0]) == "host 1 of 2 is lost: its connection has ended"
    for _ in range(2):
        with pytest.raises(HostLost):
            link.receive(PATIENCE_S)
    late: list[HostLost] = []
    link.watch(late.append)
    assert late == told, "who asks too late is told too"


def test_an_end_that_is_said_is_no_loss_and_is_known_to_the_other_side_once_this_one_closes(
    heartless: None,
    ends: tuple[Link, socket.socket],
    sealed: Sealing,
) -> None:
    link, far = ends
    told: list[HostLost] = []
    link.watch(told.append)
    far.sendall(sealed(frame(Kind.END)))
    far.shutdown(socket.SHUT_WR)
    assert link.receive(PATIENCE_S) == (Kind.END, b"")
    far.settimeout(0.1)
    with pytest.raises(TimeoutError):
        far.recv(1)
    link.close()
    far.settimeout(PATIENCE_S)
    assert far.recv(1) == b""
    assert told == []


def test_an_end_with_a_reason_is_a_loss(ends: tuple[Link, socket.socket], sealed: Sealing) -> None:
    link, far = ends
    told: SimpleQueue[HostLost] = SimpleQueue()
    link.watch(told.put)
    far.sendall(sealed(frame(Kind.END, b"no memory")))
    assert str(told.get(timeout=PATIENCE_S)) == "host 1 of 2 is lost: it has ended: no memory"
    assert link.receive(PATIENCE_S) == (Kind.END, b"no memory")


def test_an_end_that_falls_silent_is_lost_and_one_that_lives_is_not(
    clock: Clock, ends: tuple[Link, socket.socket], sealed: Sealing
) -> None:
    link, far = ends
    link.patience = 1.0
    far.sendall(sealed(frame(Kind.READY)))  # from here on the shorter patience holds
    link.receive(PATIENCE_S)
    given_up = time.monotonic() + PATIENCE_S
    for _ in range(4):  # longer than its patience
        clock.now += 0.6
        far.sendall(sealed(frame(Kind.HEARTBEAT)))
        while clock.waits_since < clock.now:
            assert time.monotonic() < given_up
            time.sleep(0.001)
    assert link.lost is None
    clock.now += 1.0
    with pytest.raises(HostLost, match=r"it has not been heard of for 1 s"):
        link.receive(PATIENCE_S)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (HEADER.pack(1 << 21, Kind.OFFER), "a message of 2097152 bytes, where 1048576 are the most"),
        (HEADER.pack(0, 99), "99 is not a valid Kind"),
    ],
)
def test_what_is_no_message_ends_the_connection(ends: tuple[Link, socket.socket], sent: bytes, reason: str) -> None:
    link, far = ends
    far.sendall(sent)
    with pytest.raises(HostLost, match=reason):
        link.receive(PATIENCE_S)


@pytest.mark.parametrize("at", [0, HEADER.size, HEADER.size + 8, -1])
def test_a_message_that_was_changed_on_its_way_ends_the_connection(
    ends: tuple[Link, socket.socket], sealed: Sealing, at: int
) -> None:
    link, far = ends
    sent = bytearray(sealed(frame(Kind.OFFER, bytes(64))))
    if at:
        sent[at] ^= 1
    else:  # an END in its place
        sent[4] = Kind.END
    far.sendall(sent)
    with pytest.raises(HostLost, match="a message does not have its tag"):
        link.receive(PATIENCE_S)


@pytest.mark.parametrize("kind", ["replayed", "left out", "sent back"])
def test_a_message_in_another_place_ends_the_connection(ends: tuple[Link, socket.socket], kind: str) -> None:
    link, far = ends
    theirs = Sealing()
    first, second, third = (theirs(frame(Kind.READY)) for _ in range(3))
    far.sendall(first)
    assert link.receive(PATIENCE_S).kind is Kind.READY
    far.sendall({"replayed": first, "left out": third, "sent back": sealed_by_leader(frame(Kind.READY))}[kind])
    with pytest.raises(HostLost, match="a message does not have its tag"):
        link.receive(PATIENCE_S)
    assert second != first


def test_a_link_that_is_closed_ends_the_other_side_and_tells_nobody(ends: tuple[Link, socket.socket]) -> None:
    link, far = ends
    told: list[HostLost] = []
    link.watch(told.append)
    link.send(frame(Kind.END, b"why"))
    link.close()
    link.send(frame(Kind.READY))
    far.settimeout(PATIENCE_S)
    received = b"".join(iter(lambda: far.recv(4096), b""))
    assert received[:-TAG_BYTES].endswith(frame(Kind.END, b"why"))
    assert told == []


def test_facts_survive_the_wire() -> None:
    facts = {"the model": "llama, 12 µ", "nothing": ""}
    assert unpack_facts(pack_facts(facts)) == facts
    with pytest.raises(ValueError, match="lacks its value"):
        unpack_facts(b"name")
