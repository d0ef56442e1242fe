"""The log of a stream: its last encoded events in memory, for readers that come late, come back, or come twice."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import NamedTuple, Protocol

from server.protocol.errors import ApiError
from server.streams.byte_budget import ByteBudget
from server.streams.position import Lanes, Position, encode, parse

EVENT_BYTES = 64  # what Python needs for an event beside its bytes
MAX_BATCH = 512  # events that a reader gets at once
MAX_CHOICES = 16  # of one log
_FEW = 256  # dropped events that may stay in the list before it is made shorter


class Entry(NamedTuple):
    """An event as one reader gets it."""

    position: bytes | None  # of the reader once it has the event; None: a transient event, which has none
    event: bytes
    is_last: bool


class Follower(Protocol):
    """Takes the events of a log for one reader while they are appended, so that no task is woken for them."""

    @property
    def is_ready(self) -> bool:
        """Whether what it takes now can be sent at once."""

    @property
    def frame(self) -> Callable[[bytes, bytes], bytes]:
        """A function that adds the position to an event, in the form in which the reader gets both."""

    @property
    def put(self) -> Callable[[Sequence[bytes]], None]:
        """Takes framed events, which the next flush sends."""

    def flush(self) -> None:
        """Sends what was taken."""

    def follow(self, stop: Callable[[Exception | None], None]) -> None:
        """`stop` is called when the follower is not ready any more."""

    def leave(self, stop: Callable[[Exception | None], None]) -> None:
        """`stop` is not to be called any more. Idempotent."""


class StreamLog:
    """Encoded events, numbered from 0, with one writer and any number of readers.

    A log that would exceed its bound drops its oldest events; a reader that has yet to read them gets an error.

    Whoever appends calls `flush` soon afterwards, once for all events that come together.
    """

    def __init__(
        self, max_bytes: int, budget: ByteBudget, num_choices: int = 1, *, is_recomputed: bool = False
    ) -> None:
        """Bounds the events, but for the last one, by `max_bytes`, and those of all logs by `budget`.

        With one choice, a position is one number. Readers of a log that `is_recomputed` may be ahead of it.
        """
        self._max_bytes = max_bytes
        self._budget = budget
        self.lanes = None if num_choices == 1 else Lanes(num_choices)
        self._is_recomputed = is_recomputed
        self._events: list[bytes] = []  # from the event `_offset` on; dropped ones are empty
        self._offset = 0
        self._waiting: list[_Reader] = []  # have everything and wait to be woken
        self._followers: list[_Reader] = []  # have everything and are pushed to
        self._transient: bytes | None = None  # the last event without a number, until one with a number follows
        self.error: ApiError | None = None  # what the log has ended with; None where it has not ended, or ended well
        self.num_events = 0  # the dropped ones included
        self.first_kept = 0  # the number of the oldest event that can be read
        self.num_bytes = 0
        self.is_ended = False
        self.is_complete = False  # whether the last event has been added

    def append(self, event: bytes, choice: int | None = None, *, is_last: bool = False) -> int:
        """Adds an event of a choice, which followers take and other readers wake for; returns its number.

        The last one has no other behind it, and readers take it themselves. Raises RuntimeError where the log has
        ended.
        """
        if self.is_ended:
            raise RuntimeError("the log of the stream has ended")
        self._transient = None
        self._events.append(event)
        number = self.num_events
        self.num_events = number + 1
        if self.lanes is not None:
            self.lanes.add(choice)
        size = len(event) + EVENT_BYTES
        self.num_bytes += size
        if self._budget.take(size) or self.num_bytes > self._max_bytes:
            self._drop_oldest()
        if is_last:
            self.is_complete = True
            self._wake()
        else:
            for reader in self._followers:
                reader.take(event)
            if self._waiting:
                self._wake_waiting()
        return number

    def flush(self) -> None:
        """Sends what followers have taken."""
        for reader in self._followers:
            reader.flush()

    def append_transient(self, event: bytes) -> None:
        """Shows an event to readers that have everything, and to those that come before the next one.

        Only the last such event is kept; it has no number, and counts against no bound.
        """
        self._transient = None if self.is_ended else event
        self._wake()

    def end(self, error: ApiError | None = None) -> None:
        """Says that no event follows; `error` is raised to every reader behind the last event. Idempotent."""
        if not self.is_ended:
            self.is_ended = True
            self._transient = None
            self.error = None if error is None else error.without_traces()
            self._wake()

    def free(self) -> None:
        """Drops all events; whoever still reads gets an error. The log must not be written any more."""
        self.end()
        self._budget.give_back(self.num_bytes)
        self.num_bytes = 0
        self._offset = self.first_kept = self.num_events
        self._events = []

    @property
    def beginning(self) -> Position:
        return (0,) if self.lanes is None else (0,) * len(self.lanes.counts)

    @property
    def position(self) -> Position:
        """Of a reader that has all events so far."""
        return (self.num_events,) if self.lanes is None else tuple(self.lanes.counts)

    def parse(self, after: str | None) -> Position:
        """The position that a client gives, or the beginning; raises ApiError if it is none of this stream."""
        if after is None:
            return self.beginning
        position = parse(after, len(self.beginning))
        if not self._is_recomputed and any(map(int.__gt__, position, self.position)):
            raise never_sent(position, self.position)
        return position

    def is_end(self, position: Position) -> bool:
        """Whether nothing follows `position`."""
        return self.is_ended and self.error is None and position == self.position

    async def read(
        self, position: Position = (0,), follower: Follower | None = None
    ) -> AsyncGenerator[list[Entry], None]:
        """What follows `position`, perhaps one that is not reached yet, as it comes, several events at once.

        A `follower` may take events, but the last, in their order, while the reader waits for the next item.

        Raises ApiError: an event that follows has been dropped, the log ends before `position`, or the log's own error.
        """
        reader = _Reader(self, position, follower)
        seen: bytes | None = None  # the last transient event
        is_behind = False
        while True:
            if is_behind:  # a client that takes everything at once would keep the loop until it has the whole log
                await asyncio.sleep(0)
            if reader.next < self.first_kept:
                raise events_dropped(self.first_kept)
            is_behind = reader.next + MAX_BATCH < self.num_events
            if reader.next < self.num_events:
                at = reader.next - self._offset
                found = [reader.entry(event) for event in self._events[at : at + MAX_BATCH]]
                if entries := [entry for entry in found if entry is not None]:
                    yield entries
            elif self.is_ended:
                break
            elif self._transient is not None and self._transient is not seen:
                seen = self._transient
                yield [Entry(None, seen, is_last=False)]
            else:
                await reader.wait()
        if self.error is not None:
            raise self.error
        if any(map(int.__gt__, position, self.position)):
            raise never_sent(position, self.position)

    def _drop_oldest(self) -> None:
        """Drops events until the log and the budget are within their bounds, but for the last event."""
        while self.first_kept < self.num_events - 1 and (self.num_bytes > self._max_bytes or self._budget.is_exceeded):
            at = self.first_kept - self._offset
            size = len(self._events[at]) + EVENT_BYTES
            self._events[at] = b""
            self.first_kept += 1
            self.num_bytes -= size
            self._budget.give_back(size)
            if at >= max(_FEW, len(self._events) // 2):  # seldom, so that it costs the same however long the log is
                del self._events[: at + 1]
                self._offset = self.first_kept

    def _wake(self) -> None:
        for reader in self._followers:
            reader.flush()  # before the reader goes on behind it
            reader.stop()
        self._wake_waiting()

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for reader in waiting:
            reader.wake()


class _Reader:
    """One reader of a log, and how far it has come."""

    __slots__ = ("_counts", "_follower", "_frame", "_had", "_log", "_put", "_woken", "flush", "next")

    def __init__(self, log: StreamLog, position: Position, follower: Follower | None) -> None:
        self._log = log
        self._follower = follower
        self._had = position
        self._woken: asyncio.Future[None] | None = None
        self.next = position[0]  # the number of the next event that it reads
        self._counts: list[int] = []  # of each lane's events before that one; empty of a log of one choice
        if log.lanes is not None:
            self._counts, self.next = log.lanes.find(position)
        if follower is not None:  # these are used only while the follower takes events
            self._frame, self._put, self.flush = follower.frame, follower.put, follower.flush

    def entry(self, event: bytes) -> Entry | None:
        """Returns the next event for the reader, or None if the reader already has it."""
        position = self._go_on()
        is_last = self._log.is_complete and self.next == self._log.num_events
        return None if position is None else Entry(position, event, is_last)

    def take(self, event: bytes) -> None:
        """Pushes the next event to the follower."""
        if self._counts:
            position = self._go_on()
            if position is None:
                return
        else:
            self.next += 1
            position = b"%d" % self.next
        self._put((self._frame(position, event),))

    def stop(self, _error: Exception | None = None) -> None:
        """Lets the reader's task go on: the follower takes nothing more."""
        log = self._log
        log._followers = [other for other in log._followers if other is not self]
        if self._follower is not None:
            self._follower.leave(self.stop)
        self.wake()

    def wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def wait(self) -> None:
        """Waits until the reader's task has to read again; until then the follower, if ready, takes the events."""
        log, follower = self._log, self._follower
        self._woken = asyncio.get_running_loop().create_future()
        if follower is not None and follower.is_ready and self.next == log.num_events:
            log._followers = [*log._followers, self]
            follower.follow(self.stop)
        else:
            log._waiting.append(self)
        try:
            await self._woken
        finally:
            self._woken = None
            log._waiting = [other for other in log._waiting if other is not self]
            self.stop()

    def _go_on(self) -> bytes | None:
        """Advances by one event; returns the position after it, or None if the reader already has the event."""
        number = self.next
        self.next = number + 1
        lanes, counts, had = self._log.lanes, self._counts, self._had
        if lanes is None:
            return b"%d" % self.next
        lane = lanes.lane_of(number)
        counts[lane] += 1
        return None if counts[lane] <= had[lane] else encode(map(max, counts, had))


def never_sent(position: Position, end: Position) -> ApiError:
    """400: the reader's position is beyond the end of the stream."""
    told = encode(position).decode(), encode(end).decode()
    return ApiError(f"after is {told[0]}; the stream has {told[1]} events", param="after", code="invalid_value")


def events_dropped(first_kept: int) -> ApiError:
    """410: the events that the reader asks for were dropped."""
    return ApiError(
        f"the events before number {first_kept} are no longer kept; the stream cannot be continued without them",
        status=410,
        param="after",
        code="events_dropped",
    )
