"""Streams: the destination of one answer's events, whether a client reads them now, later or never."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeAlias

from engine.interface.types import FinishReason
from server.generation.output_sequence import Delta
from server.generation.push import Sink
from server.protocol.errors import ApiError, to_api_error
from server.streams.stream_log import StreamLog

MAX_READERS = 16  # of one stream at once; every event is written to each of them

_log = logging.getLogger(__name__)

# Makes the events of deltas.
Encode: TypeAlias = Callable[[Sequence[Delta]], Sequence[bytes]]


class Stream(ABC):
    """Takes the encoded events of one answer, in their order."""

    @abstractmethod
    async def write(self, events: Sequence[bytes]) -> None:
        """Takes events; waits where the reader is slow."""

    @abstractmethod
    def sink(self, encode: Encode) -> Sink[Delta]:
        """Returns a sink that writes deltas without waiting; see `Generation.push`."""

    async def write_deltas(
        self, deltas: Sequence[Delta], encode: Callable[[Sequence[Delta]], Awaitable[Sequence[bytes]]]
    ) -> None:
        """Takes the events of deltas; waits where the reader is slow."""
        await self.write(await encode(deltas))


class StreamOwner(Protocol):
    """The part of the stream registry that a logged stream calls."""

    def note_unread(self, stream: LoggedStream) -> None:
        """The stream has ended, and nobody reads it."""

    def note_reader(self, stream: LoggedStream) -> None:
        """Somebody reads the stream."""

    def forget(self, stream: LoggedStream) -> None:
        """Drops the stream, which has ended and was not read during the grace period."""


# Makes the events of an answer. It calls `begin` once the request is accepted.
Producer: TypeAlias = Callable[["LoggedStream"], Awaitable[None]]


class LoggedStream(Stream):
    """A stream whose events are produced by a task of its own and kept in a bounded log for any number of readers.

    While nobody reads, a clock runs. When it has run for the grace, a stream that still grows is stopped, and one that
    has ended is forgotten.
    """

    def __init__(
        self, stream_id: str, owner: str | None, log: StreamLog, grace: float, registry: StreamOwner,
        *, is_background: bool,
    ) -> None:  # fmt: skip
        """`owner` is the salt of the reading tenant; a background answer is made to its end whether read or not."""
        self.id = stream_id
        self.owner = owner
        self.log = log
        self.on_forget: Callable[[], object] | None = None  # called when it is given up, not when the server ends
        self.on_abort: Callable[[], object] | None = None  # called before the end of a choice that was aborted
        self.producer: Producer | None = None
        self.is_background = is_background
        self.num_readers = 0
        self.is_forgotten = False
        self._grace = grace
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._begun: asyncio.Future[None] = self._loop.create_future()
        self._on_stop: Callable[[], object] | None = None
        self._is_stopped = False
        self._task: asyncio.Task[None] | None = None

    async def write(self, events: Sequence[bytes]) -> None:
        """Appends events to the log."""
        for event in events:
            self.log.append(event)
        self.log.flush()

    async def write_deltas(
        self, deltas: Sequence[Delta], encode: Callable[[Sequence[Delta]], Awaitable[Sequence[bytes]]]
    ) -> None:
        """Appends the events of deltas to the log, each with its choice."""
        for delta in deltas:
            self.check_end(delta)
            for event in await encode((delta,)):
                self.log.append(event, delta.index)
        self.log.flush()

    def sink(self, encode: Encode) -> Sink[Delta]:
        return _LogSink(self, encode)

    def check_end(self, delta: Delta) -> None:
        """Called before the events of a delta are appended; raises what `on_abort` raises."""
        if delta.finish_reason is FinishReason.ABORT and self.on_abort is not None:
            self.on_abort()

    def start(self, producer: Producer) -> None:
        """Runs `producer` in a task of its own, in a copy of the caller's context."""
        self.producer = producer
        self._task = asyncio.create_task(self._run(producer))
        self._task.add_done_callback(self._end_unstarted)
        self._rest()

    def begin(self, on_stop: Callable[[], object]) -> None:
        """Says, by the producer, that the request is accepted; `on_stop` makes it come to its end soon."""
        self._on_stop = on_stop
        if not self._begun.done():
            self._begun.set_result(None)
        if self._is_stopped:
            on_stop()

    async def begun(self) -> None:
        """Waits until the request is accepted; raises ApiError where it was refused or stopped, and is forgotten."""
        try:
            await asyncio.shield(self._begun)
        except asyncio.CancelledError:
            if self._begun.cancelled():
                raise _stopped() from None
            raise

    @property
    def is_running(self) -> bool:
        """Whether its events are still being produced."""
        return not self.log.is_ended

    def stop(self) -> None:
        """Ends the answer early. What was written stays readable."""
        self._is_stopped = True
        if self._on_stop is not None:
            self._on_stop()
        elif self._task is not None:
            self._task.cancel()

    @contextmanager
    def reading(self) -> Iterator[StreamLog]:
        """Registers a reader and gives it the log, without the grace timer; raises ApiError (429) for too many."""
        if self.num_readers >= MAX_READERS:
            raise ApiError(
                f"{MAX_READERS} connections read this stream already, the limit; close one of them",
                status=429,
                error_type="rate_limit_error",
                code="too_many_readers",
                headers={"Retry-After": "1"},
            )
        self.num_readers += 1
        self._registry.note_reader(self)
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
        """Stops the task and frees the log. If somebody still reads, the log is freed after the last reader."""
        self.is_forgotten = True
        self._stop_clock()
        if self.is_running:
            self.stop()  # the task frees the log at its end
        elif not self.num_readers:
            self.log.free()

    async def _run(self, producer: Producer) -> None:
        try:
            await producer(self)
            self.log.end()
        except asyncio.CancelledError:
            self.log.end(_stopped())
            raise
        except Exception as error:  # noqa: BLE001 - whoever waits for the answer, or reads it, is told
            told = to_api_error(error)
            if told.status == 500:
                _log.exception("a logged stream has failed")
            self._fail(told)
        finally:
            if not self._begun.done():
                self._begun.cancel()
            self._on_stop = None
            self._rest()

    def _end_unstarted(self, _task: asyncio.Task[None]) -> None:
        """Ends the stream where its task was cancelled before its first step, so that `_run` could not."""
        if self.is_running:
            self.log.end(_stopped())
            self._begun.cancel()
            self._rest()

    def _fail(self, error: ApiError) -> None:
        self.log.end(error)
        if not self._begun.done():
            self._begun.set_exception(error.without_traces())
            self._begun.exception()  # marked as seen: the one who waited may have left
            self._registry.forget(self)

    def _rest(self) -> None:
        """Starts the grace timer if nobody reads."""
        self._stop_clock()
        if self.num_readers:
            return
        if self.is_forgotten:
            if not self.is_running:
                self.log.free()
            return
        if not self.is_running:
            self._registry.note_unread(self)
        if not (self.is_running and self.is_background):
            self._timer = self._loop.call_later(self._grace, self._end_grace)

    def _end_grace(self) -> None:
        if self.is_running:
            self.stop()  # the end of the task starts the clock once more
        else:
            self._registry.forget(self)

    def _stop_clock(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()


class _LogSink:
    """Appends the events of deltas to the log of a stream. It is always ready."""

    __slots__ = ("_append", "_encode", "_stream", "outbox")

    is_ready = True

    def __init__(self, stream: LoggedStream, encode: Encode) -> None:
        self._stream = stream
        self._append = stream.log.append
        self._encode = encode
        self.outbox = stream.log

    def take(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            if delta.finish_reason is not None:
                self._stream.check_end(delta)
            for event in self._encode((delta,)):
                self._append(event, delta.index)

    def follow(self, stop: Callable[[Exception | None], None]) -> None:
        """It never stops."""

    def leave(self, stop: Callable[[Exception | None], None]) -> None:
        """It never stops."""


def _stopped() -> ApiError:
    return ApiError("the stream was stopped", status=409, code="cancelled")
