"""The resumable streams of the router, each with the request by which another replica can continue it."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

RECORD_BYTES = 512  # of a stream in addition to its body


@dataclass(slots=True, eq=False)
class RoutedStream:
    """One stream: its owner, its request, and the replica that generates it now."""

    id: str
    owner: str  # the tenant, who alone may read it
    path: str
    headers: Mapping[str, str]
    body: bytes
    blocks: tuple[int, ...]
    replica: str | None = None  # its name
    is_stopped: bool = False  # by its client
    num_readers: int = 0
    unread_since: float = field(default_factory=time.monotonic)

    @property
    def num_bytes(self) -> int:
        return len(self.body) + RECORD_BYTES


class RoutedStreams:
    """The streams by id, bounded in number and bytes. A stream is dropped when it had no reader for the grace period,
    the one that had none for the longest first where there is no room.
    """

    def __init__(
        self, *, grace: float, max_bytes: int, max_streams: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._grace = grace
        self._max_bytes = max_bytes
        self._max_streams = max_streams
        self._clock = clock
        self._streams: dict[str, RoutedStream] = {}
        self._num_bytes = 0

    def add(self, stream: RoutedStream) -> bool:
        """Adds a stream; False where there is no room even without all streams that have no reader."""
        expired = self._clock() - self._grace
        for each in [each for each in self._unread() if each.unread_since < expired]:  # the replicas have dropped them
            self.remove(each)
        num_streams, num_bytes = len(self._streams) + 1, self._num_bytes + stream.num_bytes
        dropped: list[RoutedStream] = []
        if num_streams > self._max_streams or num_bytes > self._max_bytes:
            for each in sorted(self._unread(), key=lambda each: each.unread_since):
                dropped.append(each)
                num_streams, num_bytes = num_streams - 1, num_bytes - each.num_bytes
                if num_streams <= self._max_streams and num_bytes <= self._max_bytes:
                    break
            else:
                return False
        for each in dropped:
            self.remove(each)
        self._streams[stream.id] = stream
        self._num_bytes += stream.num_bytes
        return True

    def get(self, stream_id: str, owner: str) -> RoutedStream | None:
        """The stream of this id, if it is this owner's."""
        stream = self._streams.get(stream_id)
        return stream if stream is not None and stream.owner == owner else None

    def remove(self, stream: RoutedStream) -> None:
        """Idempotent."""
        if self._streams.get(stream.id) is stream:
            del self._streams[stream.id]
            self._num_bytes -= stream.num_bytes

    @contextmanager
    def reading(self, stream: RoutedStream) -> Iterator[None]:
        """Counts a reader, which keeps the stream from being dropped."""
        stream.num_readers += 1
        try:
            yield
        finally:
            stream.num_readers -= 1
            stream.unread_since = self._clock()

    def _unread(self) -> Iterator[RoutedStream]:
        return (stream for stream in self._streams.values() if not stream.num_readers)
