"""The fast path of streaming: deltas are written in the call that delivers a step's tokens, without waking a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from engine.interface.types import TokenEvent
from server.generation.output_sequence import Delta, OutputSequence

if TYPE_CHECKING:  # it brings JAX, which takes a second to import
    from engine.client import Outbox

News = TypeVar("News")  # what a step brings: an event, or its tokens alone
Taken_contra = TypeVar("Taken_contra", contravariant=True)  # deltas, or what was made of them


class Sink(Protocol[Taken_contra]):
    """Takes deltas without waiting and puts them into an outbox, which is flushed once for all sinks of a step."""

    @property
    def is_ready(self) -> bool:
        """Whether the client keeps up, so that deltas can be written at once. If not, a task must read and wait."""

    @property
    def outbox(self) -> Outbox | None:
        """What has to be flushed after a step; None: nothing."""

    def take(self, pieces: Sequence[Taken_contra]) -> None:
        """Encodes the pieces into the outbox."""

    def follow(self, stop: Callable[[Exception | None], None]) -> None:
        """`stop` is called when the sink is not ready any more, with the error if it never will be again."""

    def leave(self, stop: Callable[[Exception | None], None]) -> None:
        """Unregisters `stop`. Idempotent."""


class Push:
    """Listens to the token streams of one generation's sequences and passes their deltas to a sink."""

    __slots__ = ("_error", "_lanes", "_num_open", "_sink", "_stopped")

    def __init__(
        self,
        sequences: Sequence[OutputSequence],
        advance: Callable[[OutputSequence, TokenEvent], list[Delta]],
        advance_tokens: Callable[[OutputSequence, Sequence[int]], list[Delta]],
        sink: Sink[Delta],
    ) -> None:
        self._lanes = [_Lane(self, sequence, advance, advance_tokens, sink) for sequence in sequences]
        self._num_open = len(sequences)
        self._sink = sink
        self._error: Exception | None = None
        self._stopped = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Pushes until all sequences have ended, or until the sink is not ready; the streams can be read on then."""
        self._sink.follow(self.stop)
        for lane in self._lanes:
            if self._stopped.done():  # what has waited in the stream of another sequence has filled the client's socket
                break
            lane.listen()
        try:
            await self._stopped
        finally:
            self.stop(None)
            error, self._error = self._error, None  # also where it is cancelled: its traceback knows this object
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback keeps this frame, which would keep it until a garbage collection

    def note_end(self) -> None:
        """Counts a sequence that has had its last delta."""
        self._num_open -= 1
        if not self._num_open:
            self.stop(None)

    def stop(self, error: Exception | None) -> None:
        """Stops listening at once, because other events may come before the waiting task runs."""
        if not self._stopped.done():
            self._error = error
            self._stopped.set_result(None)
        lanes, self._lanes = self._lanes, []  # they know this object, and would be kept until a garbage collection
        for lane in lanes:
            lane.leave()
        self._sink.leave(self.stop)


class _Lane:
    """Listens to the token stream of one sequence."""

    __slots__ = ("_advance", "_advance_tokens", "_outbox", "_push", "_sequence", "_take")

    def __init__(
        self,
        push: Push,
        sequence: OutputSequence,
        advance: Callable[[OutputSequence, TokenEvent], list[Delta]],
        advance_tokens: Callable[[OutputSequence, Sequence[int]], list[Delta]],
        sink: Sink[Delta],
    ) -> None:
        self._push = push
        self._sequence = sequence
        self._advance = advance
        self._advance_tokens = advance_tokens
        self._take = sink.take
        self._outbox = sink.outbox

    def listen(self) -> None:
        self._sequence.stream.listen(self)

    def leave(self) -> None:
        self._sequence.stream.listen(None)

    def receive(self, event: TokenEvent) -> Outbox | None:
        """Takes one event; see `Listener`."""
        return self._hand_on(self._advance, event)

    def receive_tokens(self, token_ids: Sequence[int]) -> Outbox | None:
        """Takes new tokens; see `Listener`. They may end the sequence, because a stop string ends in them."""
        return self._hand_on(self._advance_tokens, token_ids)

    def _hand_on(self, advance: Callable[[OutputSequence, News], list[Delta]], news: News) -> Outbox | None:
        if self._sequence.finish_reason is not None:  # the abort of a stop string may come back at once
            return None
        try:
            deltas = advance(self._sequence, news)
            if not deltas:
                return None
            self._take(deltas)
        except Exception as error:  # noqa: BLE001 - raised where somebody waits
            self._push.stop(error)
            return None
        if deltas[-1].finish_reason is not None:
            self._push.note_end()
        return self._outbox
