"""The two ports of page events: connections that read one buffer of batches, each at its own pace.

A connection holds no messages. It has a position in the buffer, and what it has not read when the buffer drops it is
missed, as with ZeroMQ's own sockets. So neither slow readers nor their number take memory.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass, field

from engine.interface.address import KVEndpoint
from engine.interface.client_address import client_of, makes_room, parse_address
from engine.kv_events import zmtp
from engine.kv_events.zmtp import Decoder, ProtocolError, Received

MOST_CONNECTIONS = 64  # of each port
MOST_OF_ADDRESS = 32  # of them
MOST_TOPICS = 16  # that one subscriber may name
HANDSHAKE_SECONDS = 5.0
STALL_SECONDS = 60.0  # that a client may not read what waits for it
NUMBER_BYTES = 8
END = (-1).to_bytes(NUMBER_BYTES, "big", signed=True)
_READ_BYTES = 4096
_BACKLOG = 64
_CHUNK_BATCHES, _CHUNK_BYTES = 64, 1 << 18  # that one connection gets in a turn
_PAUSE_SECONDS = 0.001  # after a turn with replays, so that they leave the interpreter lock to others
_ACCEPT_SECONDS = 0.002  # between two new connections: a flood of them costs this process little
_RETRY_SECONDS = 0.1  # without accepting, where there is no descriptor


class ReplayBuffer:
    """Numbers batches and keeps as many of the latest ones as its limits allow."""

    def __init__(self, max_batches: int, max_bytes: int) -> None:
        self._max_batches = max_batches
        self._max_bytes = max_bytes
        self._batches: deque[tuple[int, bytes]] = deque()
        self._num_bytes = 0
        self.next_number = 0

    def add(self, payload: bytes) -> int:
        """Adds a batch, drops the oldest ones beyond the limits, and returns its sequence number."""
        number = self.next_number
        self.next_number += 1
        self._batches.append((number, payload))
        self._num_bytes += len(payload)
        while self._batches and (len(self._batches) > self._max_batches or self._num_bytes > self._max_bytes):
            self._num_bytes -= len(self._batches.popleft()[1])
        return number

    def first_from(self, number: int) -> tuple[int, bytes] | None:
        """The first batch there is with this sequence number or a later one."""
        if not self._batches or number >= self.next_number:
            return None
        return self._batches[max(0, number - self._batches[0][0])]


@dataclass(eq=False)
class _Client:
    connection: socket.socket
    address: str
    is_subscriber: bool
    ends_at: float | None  # None: it is neither in the handshake nor does anything wait for it
    decoder: Decoder = field(default_factory=Decoder)
    topics: set[bytes] = field(default_factory=set)
    position: int | None = None  # the sequence number that a subscriber gets next; None: nothing is wanted
    requests: deque[int] = field(default_factory=deque)  # the same of replays, of which the first is being answered
    unsent: list[memoryview] = field(default_factory=list)


class EventSockets:
    """The ports for subscribers and for replays. All methods are called by one thread."""

    def __init__(self, endpoint: KVEndpoint, topic: bytes, kept: ReplayBuffer) -> None:
        """Raises ValueError if an address cannot be bound."""
        self._topic = topic
        self._kept = kept
        self._clients: dict[socket.socket, _Client] = {}  # the oldest first
        self._selector = selectors.DefaultSelector()
        self._listeners: list[socket.socket] = []
        self._accepts_at = 0.0
        self._has_replayed = False
        try:
            for port, address in ((endpoint.port, endpoint.events), (endpoint.port + 1, endpoint.replays)):
                try:
                    self._listeners.append(_listen(endpoint.host.strip("[]"), port))
                except OSError as error:
                    raise ValueError(f"kv_events cannot listen at {address}: {error.strerror}") from error
            self._waker, self._woken = socket.socketpair()
        except BaseException:
            for listener in self._listeners:
                listener.close()
            self._selector.close()
            raise
        self._woken.setblocking(False)
        for listener in (*self._listeners, self._woken):
            self._selector.register(listener, selectors.EVENT_READ)

    def wake(self) -> None:
        """Ends a `turn` that waits; any thread may call it."""
        with contextlib.suppress(OSError):
            self._waker.send(b"\0", socket.MSG_DONTWAIT)

    def turn(self, patience: float) -> None:
        """Accepts, reads and writes what is possible, after `patience` seconds at most."""
        readable = set[object]()
        for key, events in self._selector.select(max(0.0, patience)):
            file = key.fileobj
            if file is self._woken:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(_READ_BYTES)
            elif isinstance(file, socket.socket) and file in self._listeners:
                self._accept(file)
            elif events & selectors.EVENT_READ:
                readable.add(file)
        self._has_replayed = False
        for client in tuple(self._clients.values()):
            try:
                if client.connection in readable:
                    self._read(client)
                self._serve(client)
            except (OSError, ProtocolError):
                self._drop(client)
        if self._has_replayed:
            time.sleep(_PAUSE_SECONDS)

    def close(self, seconds: float = 0.0) -> None:
        """Ends all connections, after so many seconds at most for subscribers to read what there is."""
        ends_at = time.monotonic() + seconds
        for listener in self._listeners:
            self._selector.unregister(listener)
            listener.close()
        self._listeners.clear()
        while time.monotonic() < ends_at and any(map(self._is_behind, self._clients.values())):
            self.turn(ends_at - time.monotonic())
        for client in tuple(self._clients.values()):
            self._drop(client)
        self._selector.close()
        self._waker.close()
        self._woken.close()

    def _is_behind(self, client: _Client) -> bool:
        """Whether a subscriber has not got everything yet."""
        return client.is_subscriber and (bool(client.unsent) or self._has_next(client))

    def _accept(self, listener: socket.socket) -> None:
        if time.monotonic() < self._accepts_at:
            time.sleep(_PAUSE_SECONDS)
            return
        try:
            connection, address = listener.accept()
        except OSError:
            self._accepts_at = time.monotonic() + _RETRY_SECONDS
            return
        self._accepts_at = time.monotonic() + _ACCEPT_SECONDS
        is_subscriber = listener is self._listeners[0]
        others = [client for client in self._clients.values() if client.is_subscriber == is_subscriber]
        addresses, newcomer = [client.address for client in others], client_of(parse_address(address[0]))
        loser = makes_room(addresses, newcomer, most=MOST_CONNECTIONS, most_of_each=MOST_OF_ADDRESS)
        if loser is not None:
            self._drop(others[loser])
        client = _Client(connection, newcomer, is_subscriber, time.monotonic() + HANDSHAKE_SECONDS)
        client.unsent.append(memoryview(zmtp.GREETING + zmtp.ready(b"PUB" if is_subscriber else b"ROUTER")))
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(connection, selectors.EVENT_READ)
        except OSError:
            connection.close()
            return
        self._clients[connection] = client

    def _serve(self, client: _Client) -> None:
        """Writes what is possible; raises OSError where the client must go."""
        self._fill(client)
        before = sum(map(len, client.unsent))
        while client.unsent and self._write(client):
            pass
        left, now = sum(map(len, client.unsent)), time.monotonic()
        if client.decoder.is_ready:
            if not left:
                client.ends_at = None
            elif left < before or client.ends_at is None:
                client.ends_at = now + STALL_SECONDS
        if client.ends_at is not None and client.ends_at <= now:
            raise TimeoutError("it does not read, or does not say who it is")
        wants_more = bool(client.unsent) or self._has_next(client)
        is_reading = not client.unsent and (client.is_subscriber or not client.requests)
        events = (selectors.EVENT_WRITE if wants_more else 0) | (selectors.EVENT_READ if is_reading else 0)
        if self._selector.get_key(client.connection).events != events:
            self._selector.modify(client.connection, events)

    def _read(self, client: _Client) -> None:
        try:
            data = client.connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError
        for received in client.decoder.feed(data):
            self._handle(client, received)

    def _handle(self, client: _Client, received: Received) -> None:
        match received:
            case (True, (b"PING", content)):
                client.unsent.append(memoryview(zmtp.pong(content)))
            case (True, (b"SUBSCRIBE", topic)) if client.is_subscriber:
                self._subscribe(client, topic)
            case (True, (b"CANCEL", topic)) if client.is_subscriber:
                client.topics.discard(topic)
            case (False, (body,)) if client.is_subscriber and body[:1] == b"\1":
                self._subscribe(client, body[1:])
            case (False, (body,)) if client.is_subscriber and body[:1] == b"\0":
                client.topics.discard(body[1:])
            case (False, (b"", number)) if not client.is_subscriber and len(number) == NUMBER_BYTES:
                client.requests.append(int.from_bytes(number, "big"))
            case _:
                pass  # of another form: it gets no answer
        if client.is_subscriber:
            is_wanted = any(self._topic.startswith(topic) for topic in client.topics)
            client.position = (
                (self._kept.next_number if client.position is None else client.position) if is_wanted else None
            )

    def _subscribe(self, client: _Client, topic: bytes) -> None:
        client.topics.add(topic)
        if len(client.topics) > MOST_TOPICS:
            raise ProtocolError(f"it subscribes to more than {MOST_TOPICS} topics")

    def _has_next(self, client: _Client) -> bool:
        return bool(client.requests) or (client.position is not None and client.position < self._kept.next_number)

    def _fill(self, client: _Client) -> None:
        """Takes the next batches, where everything before them is sent."""
        if client.unsent or not client.decoder.is_ready:
            return
        num_bytes = num_batches = 0
        while self._has_next(client) and num_batches < _CHUNK_BATCHES and num_bytes < _CHUNK_BYTES:
            if client.requests:
                frames = (b"", *self._replayed(client.requests))
                self._has_replayed = True
            else:
                assert client.position is not None
                batch = self._kept.first_from(client.position)
                if batch is None:  # it was dropped, and was the last one
                    client.position = self._kept.next_number
                    return
                client.position = batch[0] + 1
                frames = (self._topic, batch[0].to_bytes(NUMBER_BYTES, "big"), batch[1])
            client.unsent += map(memoryview, zmtp.message(*frames))
            num_bytes += len(frames[-1])
            num_batches += 1

    def _replayed(self, requests: deque[int]) -> tuple[bytes, bytes]:
        """Number and batch that come next in the answer to the first request, or its end."""
        batch = self._kept.first_from(requests[0])
        if batch is None:
            requests.popleft()
            return END, b""
        requests[0] = batch[0] + 1
        return batch[0].to_bytes(NUMBER_BYTES, "big"), batch[1]

    def _write(self, client: _Client) -> bool:
        """Sends once; returns whether there was room for some of it."""
        try:
            num_sent = client.connection.sendmsg(client.unsent[:512])
        except BlockingIOError:
            return False
        while client.unsent and num_sent >= len(client.unsent[0]):
            num_sent -= len(client.unsent.pop(0))
        if num_sent:
            client.unsent[0] = client.unsent[0][num_sent:]
        return True

    def _drop(self, client: _Client) -> None:
        if self._clients.pop(client.connection, None) is not None:
            self._selector.unregister(client.connection)
            client.connection.close()


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens at an address, a name, an interface of this machine, or, with *, everywhere."""
    if host == "*":
        if socket.has_dualstack_ipv6():
            return _quick(
                socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
            )
        return _quick(socket.create_server(("", port), backlog=_BACKLOG))
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        address = _address_of_interface(host)
        return _quick(socket.create_server((address, port), backlog=_BACKLOG))
    return _quick(socket.create_server(found[4][:2], family=found[0], backlog=_BACKLOG))


def _quick(listener: socket.socket) -> socket.socket:
    listener.setblocking(False)
    return listener


def _address_of_interface(name: str) -> str:
    """The IPv4 address of a network interface; raises OSError if there is no such interface."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        wanted = struct.pack("256s", name.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, wanted)[20:24])


_SIOCGIFADDR = 0x8915  # of Linux
