"""The thread that publishes the pool's page events.

Frames of a message: topic, sequence number (8 bytes, big-endian), batch (msgpack). A subscriber that finds a gap in the
numbers sends the first one that it misses to the ROUTER socket, and gets (number, batch) for each batch in the replay
buffer, and then the number -1 with an empty batch.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import TYPE_CHECKING

from cache.page import PageEvent, PagesCleared
from cache.pool import PagePool
from engine.interface.address import KVEndpoint
from engine.kv_events.batch import make_batch

if TYPE_CHECKING:
    import zmq
from collections import deque
from collections.abc import Iterator


class ReplayBuffer:
    """Numbers batches and keeps as many of the latest ones as its limits allow."""

    def __init__(self, max_batches: int, max_bytes: int) -> None:
        self._max_batches = max_batches
        self._max_bytes = max_bytes
        self._batches: deque[tuple[int, bytes]] = deque()
        self._num_bytes = 0
        self._next = 0

    def add(self, payload: bytes) -> int:
        """Adds a batch, drops the oldest ones beyond the limits, and returns its sequence number."""
        number = self._next
        self._next += 1
        self._batches.append((number, payload))
        self._num_bytes += len(payload)
        while self._batches and (len(self._batches) > self._max_batches or self._num_bytes > self._max_bytes):
            self._num_bytes -= len(self._batches.popleft()[1])
        return number

    def since(self, first: int) -> Iterator[tuple[int, bytes]]:
        """The batches from this sequence number on, in order."""
        return (batch for batch in self._batches if batch[0] >= first)


_POLL_SECONDS = 0.05  # how long a request for a replay may wait where no page comes or goes
_MAX_EVENTS = 1024  # in one batch
_MAX_UNSENT = 10_000  # messages that wait for one slow subscriber; then it misses some, and can ask for them
_MAX_KEPT, _MAX_KEPT_BYTES = 8192, 16 << 20  # of batches for replays; all of them may wait for one client
_MAX_REPLAYS = 16  # between two batches, so that requests for replays cannot hold up what is new
_NUMBER_BYTES = 8
_END = (-1).to_bytes(_NUMBER_BYTES, "big", signed=True)
_JOIN_SECONDS = 2.0
_LINGER_MS = 100  # for what subscribers have not read at the end

_log = logging.getLogger(__name__)


def check_libraries() -> None:
    """Raises ValueError if pyzmq or msgspec is not installed; the message says how to get them."""
    try:
        import msgspec  # noqa: F401
        import zmq  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"kv_events needs the package {_PACKAGES.get(error.name or '', error.name)}, which is not installed; "
            "pip install 'eagre[kv-events]' installs it"
        ) from error


_PACKAGES = {"zmq": "pyzmq"}


class KVEventPublisher:
    """Publishes a pool's events; the engine thread only puts them into a queue."""

    def __init__(
        self, endpoint: KVEndpoint, topic: str, pool: PagePool, page_size: int, *, has_array_events: bool = False
    ) -> None:
        """Binds the sockets, starts the thread and listens to the pool.

        The first message says that nothing is remembered: a subscriber may know an earlier process at this address.

        Raises:
            ValueError: a library is missing, or the address cannot be bound.
            zmq.ZMQError: the process can have no more sockets.
            RuntimeError, MemoryError: the thread cannot be started.
        """
        check_libraries()
        import zmq

        self._topic = topic.encode()
        self._pool = pool
        self._page_size = page_size
        self._has_array_events = has_array_events
        self._events: queue.SimpleQueue[PageEvent | None] = queue.SimpleQueue()  # None: the end
        self._kept = ReplayBuffer(_MAX_KEPT, _MAX_KEPT_BYTES)
        self._events.put(PagesCleared())
        self._thread = threading.Thread(target=self._run, name="eagre-kv-events", daemon=True)
        self._context = zmq.Context()
        try:
            self._open(endpoint)
            self._thread.start()
        except BaseException:
            if self._thread.ident is None:
                self._context.destroy(linger=0)  # there is no thread that would do it
            else:
                self.close()
            raise
        pool.listener = self._events.put

    def _open(self, endpoint: KVEndpoint) -> None:
        import zmq

        self._publications = self._context.socket(zmq.PUB)
        self._replays = self._context.socket(zmq.ROUTER)
        for socket, address in ((self._publications, endpoint.events), (self._replays, endpoint.replays)):
            socket.set_hwm(_MAX_UNSENT)
            socket.setsockopt(zmq.IPV6, 1)
            try:
                socket.bind(address)
            except zmq.ZMQError as error:
                raise ValueError(f"kv_events cannot listen at {address}: {error.strerror}") from error

    def close(self) -> None:
        """Stops listening, sends the remaining events, and ends the thread. Idempotent."""
        self._stop_listening()
        self._events.put(None)
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        import zmq

        try:
            while self._publish():
                for _ in range(_MAX_REPLAYS):
                    if not self._replays.poll(0):
                        break
                    self._replay(self._replays)
        except zmq.ZMQError as error:
            _log.error("the events of pages are no longer published: %s", error.strerror)
        finally:
            self._stop_listening()  # the queue is not emptied any more
            self._context.destroy(linger=_LINGER_MS)

    def _stop_listening(self) -> None:
        if self._pool.listener == self._events.put:  # and not that of a later publisher
            self._pool.listener = None

    def _publish(self) -> bool:
        """Publishes the events that there are, as one batch; returns False after the last one."""
        import msgspec

        try:
            event = self._events.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            return True
        events: list[PageEvent] = []
        while event is not None:
            events.append(event)
            if len(events) == _MAX_EVENTS or self._events.empty():
                break
            event = self._events.get()
        if events:
            batch = make_batch(events, self._page_size, time.time(), has_array_events=self._has_array_events)
            payload = msgspec.msgpack.encode(batch)
            number = self._kept.add(payload).to_bytes(_NUMBER_BYTES, "big")
            self._publications.send_multipart((self._topic, number, payload))
        return event is not None

    def _replay(self, socket: zmq.Socket[bytes]) -> None:
        """Answers one request; one of another form gets no answer. Never waits for the client."""
        frames = socket.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != _NUMBER_BYTES:
            return
        client, empty, first = frames
        for number, payload in self._kept.since(int.from_bytes(first, "big")):
            socket.send_multipart((client, empty, number.to_bytes(_NUMBER_BYTES, "big"), payload))
        socket.send_multipart((client, empty, _END, b""))
