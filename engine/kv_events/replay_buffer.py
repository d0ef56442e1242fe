"""The last batches, for subscribers that have missed some."""

from __future__ import annotations

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
        """Keeps a batch, drops the oldest ones beyond the limits, and returns its sequence number."""
        number = self._next
        self._next += 1
        self._batches.append((number, payload))
        self._num_bytes += len(payload)
        while self._batches and (len(self._batches) > self._max_batches or self._num_bytes > self._max_bytes):
            self._num_bytes -= len(self._batches.popleft()[1])
        return number

    def since(self, first: int) -> Iterator[tuple[int, bytes]]:
        """The kept batches from this sequence number on, in order."""
        return (batch for batch in self._batches if batch[0] >= first)
