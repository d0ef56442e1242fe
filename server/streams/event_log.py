"""The events of one answer, kept for readers that come late, come back, or come twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

from server.protocol.errors import ApiError
from server.streams.byte_budget import Budget

EVENT_BYTES = 64  # what Python needs for an event beside its bytes
MAX_BATCH = 512  # events that a reader gets at once
_FEW = 256  # dropped events that may stay in the list before it is made shorter


class Events(NamedTuple):
    """Events that follow one another."""

    first: int  # the number of the first of them
    events: Sequence[bytes]
    passing: bytes | None = None  # an event without a number, in the place of others


class Follower(Protocol):
    """Takes events for a reader that waits for more, so that nothing has to wake it for them."""

    def take(self, number: int, event: bytes) -> bool:
        """Takes the event with this number; False where the reader has to read it itself."""

    def flush(self) -> None:
        """Sends what was taken."""


class EventLog:
    """Encoded events, numbered from 0, with one writer and any number of readers that wait for more.

    A log that would pass its bound drops its oldest events. A reader that has yet to read them gets an error.

    Whoever appends calls `flush` soon afterwards, once for all events that come together.
    """

    def __init__(self, max_bytes: int, budget: Budget) -> None:
        """Args:
        max_bytes: of this log's events; the last event is always kept.
        budget: of all logs together.
        """
        self._max_bytes = max_bytes
        self._budget = budget
        self._events: list[bytes] = []  # from the event `_offset` on; dropped ones are empty
        self._offset = 0
        self._waiting: list[_Waiting] = []  # the readers that have read everything
        self._passing: bytes | None = None  # the last event without a number, until one with a number follows
        self._error: ApiError | None = None
        self.first_kept = 0  # the number of the oldest event that can be read
        self.num_bytes = 0
        self.is_ended = False

    @property
    def num_events(self) -> int:
        """How many events there were, the dropped ones included."""
        return self._offset + len(self._events)

    @property
    def error(self) -> ApiError | None:
        """What the log has ended with; None where it has not ended, or ended well."""
        return self._error

    def append(self, event: bytes) -> int:
        """Adds an event, which followers take and other readers wake for; returns its number.

        Raises:
            RuntimeError: the log has ended.
        """
        if self.is_ended:
            raise RuntimeError("the log of events has ended")
        self._passing = None
        self._events.append(event)
        size = len(event) + EVENT_BYTES
        self.num_bytes += size
        self._budget.take(size)
        while self.first_kept < self.num_events - 1 and (self.num_bytes > self._max_bytes or self._budget.is_passed):
            self._drop_oldest()
        number = self.num_events - 1
        if self._waiting:
            self._waiting = [reader for reader in self._waiting if reader.take(number, event)]
        return number

    def flush(self) -> None:
        """Sends what followers have taken."""
        for reader in self._waiting:
            reader.flush()

    def pass_on(self, event: bytes) -> None:
        """Shows an event to those who have read everything, and to those who come before the next one. Only the last
        such event is kept; it has no number, and counts against no bound.
        """
        self._passing = None if self.is_ended else event
        self._wake()

    def end(self, error: ApiError | None = None) -> None:
        """Says that no event follows. Idempotent.

        Args:
            error: is raised to every reader behind the last event.
        """
        if not self.is_ended:
            self.is_ended = True
            self._passing = None
            self._error = None if error is None else error.without_traces()
            self._wake()

    def free(self) -> None:
        """Drops all events; whoever still reads gets an error. The log must not be written any more."""
        self.end()
        self._budget.give_back(self.num_bytes)
        self.num_bytes = 0
        self._offset = self.first_kept = self.num_events
        self._events = []

    async def read(self, start: int = 0, follower: Follower | None = None) -> AsyncIterator[Events]:
        """All events from number `start` on, as they come, several at once where several wait.

        A start that the log has not reached yet is waited for.

        Args:
            follower: may take events, in their order, while the reader waits for the next item, which has none of them.

        Raises:
            ApiError: an event that was asked for has been dropped, or the log ends before `start`; or the log's own
                error.
        """
        seen: bytes | None = None  # the last event without a number
        is_behind = False
        while True:
            if is_behind:  # a client that takes everything at once would keep the loop until it has the whole log
                await asyncio.sleep(0)
            if start < self.first_kept:
                raise events_dropped(self.first_kept)
            is_behind = start + MAX_BATCH < self.num_events
            if start < self.num_events:
                at = start - self._offset
                events = self._events[at : at + MAX_BATCH]
                yield Events(start, events)
                start += len(events)
            elif self.is_ended:
                break
            elif self._passing is not None and self._passing is not seen:
                seen = self._passing
                yield Events(start, (), seen)
            else:
                start += await self._more(follower if start == self.num_events else None)
        if self._error is not None:
            raise self._error
        if start > self.num_events:
            raise never_sent(start, self.num_events)

    def _drop_oldest(self) -> None:
        at = self.first_kept - self._offset
        size = len(self._events[at]) + EVENT_BYTES
        self._events[at] = b""
        self.first_kept += 1
        self.num_bytes -= size
        self._budget.give_back(size)
        if at >= max(_FEW, len(self._events) // 2):  # seldom, so that dropping costs the same however long the log is
            del self._events[: at + 1]
            self._offset = self.first_kept

    async def _more(self, follower: Follower | None) -> int:
        """Waits for what `follower` does not take; returns how many events it has taken."""
        reader = _Waiting(follower)
        self._waiting.append(reader)
        try:
            await reader.woken
        finally:
            self._waiting = [other for other in self._waiting if other is not reader]
        return reader.num_taken

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for reader in waiting:
            reader.wake()


class _Waiting:
    """A reader that has read everything."""

    __slots__ = ("_follower", "num_taken", "woken")

    def __init__(self, follower: Follower | None) -> None:
        self._follower = follower
        self.num_taken = 0
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self, number: int, event: bytes) -> bool:
        """Whether the follower has taken the event; the reader is woken otherwise."""
        if self._follower is None or self.woken.done() or not self._follower.take(number, event):
            self.wake()
            return False
        self.num_taken += 1
        return True

    def flush(self) -> None:
        if self._follower is not None:
            self._follower.flush()

    def wake(self) -> None:
        self.flush()  # before the reader goes on behind it
        if not self.woken.done():
            self.woken.set_result(None)


def never_sent(num_asked: object, num_events: object) -> ApiError:
    """400: a reader says that it has events which do not exist."""
    return ApiError(f"after is {num_asked}; the stream has {num_events} events", param="after", code="invalid_value")


def events_dropped(first_kept: int) -> ApiError:
    """410: what a reader asks for is not kept any more."""
    return ApiError(
        f"the events before number {first_kept} are no longer kept; the stream cannot be continued without them",
        status=410,
        param="after",
        code="events_dropped",
    )
