"""A batch that has not ended, as the runner of batches sees it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from server.api.batches.batch_objects import BatchStatus
from server.storage.batch_table import BatchLine, StoredBatch
from server.storage.record_store import RecordStore

_READ_AT_ONCE = 64  # lines, without their requests
_FIRST_PAUSE_S = 0.125
LONGEST_PAUSE_S = 30.0


class OpenBatch:
    """A stored batch, its next lines, and what runs of it."""

    def __init__(self, stored: StoredBatch) -> None:
        self.stored = stored
        self.work: asyncio.Task[None] | None = None  # its validation or its end
        self.lines_running: dict[int, asyncio.Task[None]] = {}
        self.last_turn = 0  # when a request of it began; a count of all that have begun
        self.retry_at = 0.0  # on the loop's clock
        self.num_recorded = 0  # since it was read from the store
        self._lines: deque[BatchLine] = deque()
        self._after = 0  # the number of the last line that was read
        self._is_read = False
        self._pause_s = _FIRST_PAUSE_S

    @property
    def is_busy(self) -> bool:
        """Whether it is being validated or ended."""
        return self.work is not None and not self.work.done()

    @property
    def has_lines(self) -> bool:
        """Whether there may be requests that nobody computes."""
        is_running = self.stored.status == BatchStatus.IN_PROGRESS and not self.is_busy
        return is_running and (bool(self._lines) or not self._is_read)

    @property
    def is_done(self) -> bool:
        """Whether every request has its answer."""
        return self._is_read and not self._lines and not self.lines_running

    @property
    def num_waiting(self) -> int:
        """Requests without an answer, as far as is known."""
        return max(0, self.stored.total - self.stored.completed - self.stored.failed - self.num_recorded)

    async def next_line(self, store: RecordStore) -> BatchLine | None:
        """The next line without an answer; None where there is none. Raises StoreError."""
        if not self._lines and not self._is_read:
            number, after = self.stored.number, self._after
            lines: Sequence[BatchLine] = await store.run_read(
                lambda tables: tables.batches.take_lines(number, after, _READ_AT_ONCE)
            )
            self._lines.extend(lines)
            self._is_read = not lines
            self._after = lines[-1].number if lines else after
        return self._lines.popleft() if self._lines else None

    def leave(self, line: BatchLine) -> None:
        """Takes a line back whose turn has not come."""
        self._lines.appendleft(line)

    def put_back(self, line: BatchLine, seconds: float) -> None:
        """Takes a line back that could not be computed now. The batch pauses for so long, or longer after each pause
        until a request was computed.
        """
        self._lines.appendleft(line)
        now = asyncio.get_running_loop().time()
        if now >= self.retry_at:
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self.retry_at = max(self.retry_at, now + min(max(seconds, self._pause_s), LONGEST_PAUSE_S))

    def note_success(self) -> None:
        """A request was computed, and so the others can be too."""
        self._pause_s = _FIRST_PAUSE_S

    def tasks(self) -> list[asyncio.Task[None]]:
        """All that runs of it."""
        return [*self.lines_running.values(), *([] if self.work is None else [self.work])]
