"""One answer that goes on without its reader."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeAlias

from server.protocol.errors import ApiError, to_api_error
from server.streams.event_log import EventLog

MAX_READERS = 16  # at once; every event is written to each of them

_log = logging.getLogger(__name__)

# Makes the events of an answer. It calls `begin` once the request is accepted.
Work: TypeAlias = Callable[["HeldAnswer"], Awaitable[None]]


class Holder(Protocol):
    """Who knows the answers."""

    def note_unread(self, answer: HeldAnswer) -> None:
        """All events of the answer have been made, and nobody reads them."""

    def note_reader(self, answer: HeldAnswer) -> None:
        """Somebody reads the answer."""

    def forget(self, answer: HeldAnswer) -> None:
        """Nobody has read the ended answer for the grace."""


class HeldAnswer:
    """An answer whose events are made by a task of its own and kept in a log.

    While nobody reads, a clock runs. When it has run for the grace, an answer that is still being made is stopped, and
    one that has ended is forgotten.
    """

    def __init__(
        self, answer_id: str, owner: str | None, log: EventLog, grace: float, holder: Holder,
        *, is_background: bool,
    ) -> None:  # fmt: skip
        """Args:
        owner: the salt of the tenant that may read it.
        grace: seconds.
        is_background: the answer is made to its end, whether or not anybody reads it.
        """
        self.id = answer_id
        self.owner = owner
        self.log = log
        self.on_forget: Callable[[], object] | None = None  # called when it is given up, not when the server ends
        self.work: Work | None = None  # what makes the events; it may know more of them
        self.is_background = is_background
        self.num_readers = 0
        self.is_forgotten = False
        self._grace = grace
        self._holder = holder
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._begun: asyncio.Future[None] = self._loop.create_future()
        self._on_stop: Callable[[], object] | None = None
        self._is_stopped = False
        self._task: asyncio.Task[None] | None = None

    def start(self, work: Work) -> None:
        """Runs `work` in a task of its own, in a copy of the caller's context."""
        self.work = work
        self._task = asyncio.create_task(self._run(work))
        self._rest()

    def begin(self, on_stop: Callable[[], object]) -> None:
        """Says that the request is accepted. Called by the work.

        Args:
            on_stop: makes the work come to its end soon.
        """
        self._on_stop = on_stop
        if not self._begun.done():
            self._begun.set_result(None)
        if self._is_stopped:
            on_stop()

    async def begun(self) -> None:
        """Waits until the request is accepted.

        Raises:
            ApiError: it was refused, or stopped before; the answer is forgotten then.
        """
        try:
            await asyncio.shield(self._begun)
        except asyncio.CancelledError:
            if self._begun.cancelled():
                raise _stopped() from None
            raise

    @property
    def is_running(self) -> bool:
        """Whether its events are still being made."""
        return not self.log.is_ended

    def stop(self) -> None:
        """Ends the work early. What it has written stays readable."""
        self._is_stopped = True
        if self._on_stop is not None:
            self._on_stop()
        elif self._task is not None:
            self._task.cancel()

    @contextmanager
    def reading(self) -> Iterator[EventLog]:
        """The log, for a reader that comes or comes back; while one reads, the clock stands still.

        Raises:
            ApiError: 429, too many read it already.
        """
        if self.num_readers >= MAX_READERS:
            raise ApiError(
                f"{MAX_READERS} connections read this stream already, the limit; close one of them",
                status=429,
                error_type="rate_limit_error",
                code="too_many_readers",
                headers={"Retry-After": "1"},
            )
        self.num_readers += 1
        self._holder.note_reader(self)
        self._stop_clock()
        try:
            yield self.log
        finally:
            self.num_readers -= 1
            self._rest()

    async def close(self) -> None:
        """Ends the task at once and frees the log."""
        self.is_forgotten = True
        self._stop_clock()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.log.free()

    def free(self) -> None:
        """Ends what runs and gives the memory back, where nobody reads; the last reader does it otherwise."""
        self.is_forgotten = True
        self._stop_clock()
        if self.is_running:
            self.stop()  # the task frees the log at its end
        elif not self.num_readers:
            self.log.free()

    async def _run(self, work: Work) -> None:
        try:
            await work(self)
            self.log.end()
        except asyncio.CancelledError:
            self.log.end(_stopped())
            raise
        except Exception as error:  # noqa: BLE001 - whoever waits for the answer, or reads it, is told
            told = to_api_error(error)
            if told.status == 500:
                _log.exception("a held answer has failed")
            self._fail(told)
        finally:
            if not self._begun.done():
                self._begun.cancel()
            self._on_stop = None
            self._rest()

    def _fail(self, error: ApiError) -> None:
        self.log.end(error)
        if not self._begun.done():
            self._begun.set_exception(error.without_traces())
            self._begun.exception()  # marked as seen: the one who waited may have left
            self._holder.forget(self)

    def _rest(self) -> None:
        """Starts the clock again, if nobody reads."""
        self._stop_clock()
        if self.num_readers:
            return
        if self.is_forgotten:
            if not self.is_running:
                self.log.free()
            return
        if not self.is_running:
            self._holder.note_unread(self)
        if not (self.is_running and self.is_background):
            self._timer = self._loop.call_later(self._grace, self._end_grace)

    def _end_grace(self) -> None:
        if self.is_running:
            self.stop()  # the end of the work starts the clock once more
        else:
            self._holder.forget(self)

    def _stop_clock(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()


def _stopped() -> ApiError:
    return ApiError("the stream was stopped", status=409, code="cancelled")
