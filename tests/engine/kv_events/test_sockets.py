"""The ports of page events under clients that send too much, read nothing, or come in masses."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from engine.interface.address import KVEndpoint
from engine.kv_events import sockets, zmtp
from engine.kv_events.sockets import END, EventSockets, ReplayBuffer
from tests.engine.kv_events.test_publisher import free_endpoint
from tests.patience import PATIENCE_S

TOPIC = b"kv@here"
MORE, LONG, COMMAND = 1, 2, 4
EVENTS, REPLAYS = 0, 1


class Serving:
    """Sockets that a thread serves, and their buffer."""

    def __init__(self) -> None:
        self.endpoint: KVEndpoint = free_endpoint()
        self.kept = ReplayBuffer(1000, 1 << 20)
        self._sockets = EventSockets(self.endpoint, TOPIC, self.kept)
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def publish(self, payload: bytes) -> None:
        self.kept.add(payload)
        self._sockets.wake()

    def close(self) -> None:
        self._is_ending = True
        self._sockets.wake()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._is_ending:
            self._sockets.turn(0.05)
        self._sockets.close()


class Client:
    """A client that speaks ZMTP by hand."""

    def __init__(self, endpoint: KVEndpoint, port: int, *, shakes_hands: bool = True) -> None:
        self.socket = socket.create_connection((endpoint.host, endpoint.port + port))
        self.socket.settimeout(PATIENCE_S)
        if shakes_hands:
            self.socket.sendall(zmtp.GREETING + zmtp.ready(b"SUB" if port == EVENTS else b"DEALER"))
            assert self.take(zmtp.GREETING_BYTES) == zmtp.GREETING
            assert self.frame()[0] == COMMAND

    def take(self, size: int) -> bytes:
        taken = b""
        while len(taken) < size:
            piece = self.socket.recv(size - len(taken))
            if not piece:
                raise ConnectionResetError
            taken += piece
        return taken

    def frame(self) -> tuple[int, bytes]:
        flags = self.take(1)[0]
        return flags, self.take(int.from_bytes(self.take(8 if flags & LONG else 1), "big"))

    def message(self) -> list[bytes]:
        frames = []
        while True:
            flags, body = self.frame()
            frames.append(body)
            if not flags & MORE:
                return frames

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(zmtp.message(*frames)))

    def is_ended(self) -> bool:
        """Waits for the end of the connection."""
        with suppress(ConnectionError):
            while self.socket.recv(1 << 16):
                pass
        return True


@pytest.fixture
def serving() -> Iterator[Serving]:
    started = Serving()
    yield started
    started.close()


@pytest.fixture
def client(serving: Serving) -> Iterator[Callable[..., Client]]:
    with ExitStack() as stack:

        def connect(port: int, **options: bool) -> Client:
            made = Client(serving.endpoint, port, **options)
            stack.callback(made.socket.close)
            return made

        yield connect


def replay(asking: Client, first: int = 0) -> list[bytes]:
    asking.send(b"", first.to_bytes(8, "big"))
    found = []
    while (message := asking.message())[1] != END:
        found.append(message[2])
    return found


def test_subscribers_get_what_comes_and_replays_what_was(serving: Serving, client: Callable[..., Client]) -> None:
    serving.publish(b"before")
    subscriber, other = client(EVENTS), client(EVENTS)
    subscriber.send(b"\1kv@")
    subscriber.socket.sendall(bytes([COMMAND, 7]) + b"\4PING\0\0")
    assert subscriber.frame() == (COMMAND, b"\4PONG")  # the subscription is there now
    other.send(b"\1another topic")
    large = bytes(range(256)) * 300
    for payload in (b"one", large, b"three"):
        serving.publish(payload)
    got = [subscriber.message() for _ in range(3)]
    assert got == [
        [TOPIC, (1 + index).to_bytes(8, "big"), body] for index, body in enumerate((b"one", large, b"three"))
    ]
    asking = client(REPLAYS)
    assert replay(asking) == [b"before", b"one", large, b"three"]
    asking.send(b"", bytes(8))
    asking.send(b"", (3).to_bytes(8, "big"))  # before the first is answered
    numbers = [asking.message()[1] for _ in range(7)]
    assert [number == END for number in numbers] == [False] * 4 + [True, False, True]
    subscriber.send(b"\0kv@")
    subscriber.socket.sendall(bytes([COMMAND, 7]) + b"\4PING\0\0")
    assert subscriber.frame() == (COMMAND, b"\4PONG")
    serving.publish(b"nobody wants it")
    subscriber.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        subscriber.frame()


@pytest.mark.parametrize("port", [EVENTS, REPLAYS])
@pytest.mark.parametrize("is_before", [False, True])
@pytest.mark.parametrize(
    "sent",
    [
        bytes([LONG]) + (600 << 20).to_bytes(8, "big"),  # one message of 600 MiB
        bytes([LONG | MORE]) + (1 << 63).to_bytes(8, "big"),
        bytes([COMMAND | LONG]) + (600 << 20).to_bytes(8, "big"),
        bytes([MORE, 0]) * 100_000,  # a message of very many frames
        bytes([MORE, 255]) + bytes(255) + bytes([MORE, 0]) * 9,
        bytes([COMMAND, 0]),
        bytes([COMMAND, 1, 9]),
        bytes([9, 0]),
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 4,
    ],
    ids=lambda sent: sent[:12].hex(),
)
def test_a_message_beyond_the_limits_ends_its_connection(
    serving: Serving, client: Callable[..., Client], sent: bytes, port: int, is_before: bool
) -> None:
    """Whatever its size says, nothing of it is held; other clients go on."""
    attacker = client(port, shakes_hands=not is_before)
    with suppress(ConnectionError):
        attacker.socket.sendall(zmtp.GREETING * is_before + sent)
    assert attacker.is_ended()
    serving.publish(b"one")
    assert replay(client(REPLAYS)) == [b"one"]


def test_a_subscriber_has_few_topics(client: Callable[..., Client]) -> None:
    attacker = client(EVENTS)
    with suppress(ConnectionError):
        for index in range(1000):
            attacker.send(b"\1" + index.to_bytes(300, "big"))
    assert attacker.is_ended()


@pytest.mark.parametrize("port", [EVENTS, REPLAYS])
def test_a_silent_client_is_ended_in_time(
    client: Callable[..., Client], port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "HANDSHAKE_SECONDS", 0.1)
    assert client(port, shakes_hands=False).is_ended()


@pytest.mark.parametrize("shakes_hands", [False, True])
def test_masses_of_connections_keep_nobody_out(
    serving: Serving, client: Callable[..., Client], shakes_hands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "HANDSHAKE_SECONDS", 600.0)  # so that no deadline frees a place
    monkeypatch.setattr(sockets, "_ACCEPT_SECONDS", 0.0)
    serving.publish(b"one")
    for _ in range(200):
        client(REPLAYS, shakes_hands=shakes_hands)
    assert replay(client(REPLAYS)) == [b"one"]


def test_clients_that_do_not_read_hold_nobody_up_and_miss_what_is_dropped(
    serving: Serving, client: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "STALL_SECONDS", 600.0)
    stuck, reading = client(EVENTS), client(EVENTS)
    for subscriber in (stuck, reading):
        subscriber.send(b"\1")
        subscriber.socket.sendall(bytes([COMMAND, 7]) + b"\4PING\0\0")
        assert subscriber.frame() == (COMMAND, b"\4PONG")
    asking = client(REPLAYS)
    for _ in range(30):
        asking.send(b"", bytes(8))  # and it never reads
    numbers = []
    for _ in range(400):  # 40 MB, of which the buffer has room for one
        serving.publish(bytes(100_000))
        numbers.append(int.from_bytes(reading.message()[1], "big"))
    assert numbers == list(range(400))
    last = 0
    while last < 399:
        last = int.from_bytes(stuck.message()[1], "big")
    assert last == 399


def test_a_client_that_never_reads_loses_its_place(
    serving: Serving, client: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "STALL_SECONDS", 0.3)
    for _ in range(10):
        serving.publish(bytes(100_000))
    asking = client(REPLAYS)
    for _ in range(100):
        with suppress(ConnectionError):
            asking.send(b"", bytes(8))
    asking.socket.settimeout(PATIENCE_S)
    threading.Event().wait(2.0)
    assert asking.is_ended()
