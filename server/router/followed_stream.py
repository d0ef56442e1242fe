"""The resumable streams that pass a front, with what it takes to ask for them again at another replica."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

RECORD_BYTES = 512  # of a stream beside its body


@dataclass(slots=True, eq=False)
class FollowedStream:
    """One stream: who may read it, how it was asked for, and which replica makes it now."""

    id: str
    owner: str  # of the tenant
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


class FollowedStreams:
    """The streams by their ids, bounded in number and bytes. One that nobody has read for the grace is forgotten."""

    def __init__(
        self, *, grace: float, max_bytes: int, max_streams: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Args:
        grace: seconds.
        """
        self._grace = grace
        self._max_bytes = max_bytes
        self._max_streams = max_streams
        self._clock = clock
        self._streams: dict[str, FollowedStream] = {}
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: FollowedStream) -> bool:
        """Remembers a stream; False where there is no room, even without all that nobody reads."""
        self.forget_expired()
        if not self._may_fit(stream):
            return False
        while self._is_full_with(stream) and (oldest := self._oldest_unread()) is not None:
            self.forget(oldest)
        self._streams[stream.id] = stream
        self.num_bytes += stream.num_bytes
        return True

    def get(self, stream_id: str, owner: str) -> FollowedStream | None:
        """The stream of this id, if it is this owner's."""
        stream = self._streams.get(stream_id)
        return stream if stream is not None and stream.owner == owner else None

    def forget(self, stream: FollowedStream) -> None:
        """Idempotent."""
        if self._streams.get(stream.id) is stream:
            del self._streams[stream.id]
            self.num_bytes -= stream.num_bytes

    @contextmanager
    def reading(self, stream: FollowedStream) -> Iterator[None]:
        """While the context lasts the stream is not forgotten for want of readers."""
        stream.num_readers += 1
        try:
            yield
        finally:
            stream.num_readers -= 1
            stream.unread_since = self._clock()

    def forget_expired(self) -> None:
        """Forgets those that nobody has read for the grace: no replica has them any more."""
        due = self._clock() - self._grace
        for stream in [each for each in self._streams.values() if not each.num_readers and each.unread_since < due]:
            self.forget(stream)

    def _is_full_with(self, stream: FollowedStream) -> bool:
        return len(self._streams) >= self._max_streams or self.num_bytes + stream.num_bytes > self._max_bytes

    def _may_fit(self, stream: FollowedStream) -> bool:
        """Whether there is room where all that nobody reads is forgotten."""
        read = [each for each in self._streams.values() if each.num_readers]
        num_bytes = sum(each.num_bytes for each in read) + stream.num_bytes
        return len(read) < self._max_streams and num_bytes <= self._max_bytes

    def _oldest_unread(self) -> FollowedStream | None:
        unread = (each for each in self._streams.values() if not each.num_readers)
        return min(unread, key=lambda each: each.unread_since, default=None)
