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
from collections.abc import Sequence

from cache.page import PageEvent, PagesCleared
from cache.pool import PagePool
from engine.interface.address import KVEndpoint
from engine.kv_events.batch import make_batch
from engine.kv_events.sockets import EventSockets, ReplayBuffer

_TURN_SECONDS = 0.5  # between two looks at clients that must go, where nothing happens
_MAX_EVENTS = 1024  # in one batch
_MAX_KEPT, _MAX_KEPT_BYTES = 8192, 16 << 20  # of batches, for replays and for subscribers that read slowly
_JOIN_SECONDS = 2.0
_LINGER_SECONDS = 0.1  # for what subscribers have not read at the end

_log = logging.getLogger(__name__)


class KVEventPublisher:
    """Publishes a pool's events; the engine thread only puts them into a queue."""

    def __init__(
        self, endpoint: KVEndpoint, topic: str, pool: PagePool, page_size: int, *,
        windows: Sequence[int] = (0,), has_array_events: bool = False,
    ) -> None:  # fmt: skip
        """Binds the sockets, starts the thread and listens to the pool.

        The first message says that nothing is remembered: a subscriber may know an earlier process at this address.

        Raises:
            ValueError: the address cannot be bound.
            RuntimeError, MemoryError: the thread cannot be started.
        """
        self._pool = pool
        self._page_size = page_size
        self._windows = tuple(windows)  # of each group of layers with pages of its own
        self._has_array_events = has_array_events
        self._events: queue.SimpleQueue[PageEvent | None] = queue.SimpleQueue()  # None: the end
        self._kept = ReplayBuffer(_MAX_KEPT, _MAX_KEPT_BYTES)
        self._events.put(PagesCleared())
        self._is_waiting = False  # the thread must be woken for an event
        self._thread = threading.Thread(target=self._run, name="eagre-kv-events", daemon=True)
        self._sockets = EventSockets(endpoint, topic.encode(), self._kept)
        try:
            self._thread.start()
        except BaseException:
            if self._thread.ident is None:
                self._sockets.close()  # there is no thread that would do it
            else:
                self.close()
            raise
        pool.listener = self._note

    def _note(self, event: PageEvent | None) -> None:
        """Leaves an event to the thread; called by the engine thread."""
        self._events.put(event)
        if self._is_waiting:
            self._is_waiting = False
            self._sockets.wake()

    def close(self) -> None:
        """Stops listening, sends the remaining events, and ends the thread. Idempotent."""
        self._stop_listening()
        self._note(None)
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        try:
            while self._publish():
                self._is_waiting = True  # before the look at the queue, so that no event is missed
                self._sockets.turn(_TURN_SECONDS if self._events.empty() else 0.0)
                self._is_waiting = False
            self._sockets.turn(0.0)
        except OSError as error:
            _log.error("the events of pages are no longer published: %s", error.strerror)
        finally:
            self._stop_listening()  # the queue is not emptied any more
            self._sockets.close(_LINGER_SECONDS)

    def _stop_listening(self) -> None:
        if self._pool.listener == self._note:  # and not that of a later publisher
            self._pool.listener = None

    def _publish(self) -> bool:
        """Makes one batch of the events that there are; returns False after the last one."""
        import msgspec

        events: list[PageEvent] = []
        is_last = False
        while len(events) < _MAX_EVENTS and not self._events.empty():
            event = self._events.get()
            if event is None:
                is_last = True
                break
            events.append(event)
        if events:
            batch = make_batch(
                events, self._page_size, time.time(), windows=self._windows, has_array_events=self._has_array_events
            )
            self._kept.add(msgspec.msgpack.encode(batch))
        return not is_last
