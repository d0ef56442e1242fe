"""Deltas that are handed on in the very call that brings a step's tokens, without a task that waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from engine.border.types import TokenEvent
from server.answering.choice import Choice, Delta

if TYPE_CHECKING:  # it brings JAX, which takes a second to import
    from engine.client import Outbox, TokenStream

News = TypeVar("News")  # what a step brings: an event, or its tokens alone


class Sink(Protocol):
    """Takes deltas without waiting. What it takes goes to an outbox, which leaves with all that others put there."""

    @property
    def is_ready(self) -> bool:
        """Whether what it takes now can leave at once. Where it cannot, its owner must wait, and so read by a task."""

    @property
    def outbox(self) -> Outbox: ...

    def take(self, deltas: Sequence[Delta]) -> None:
        """Puts the deltas into the outbox."""

    def follow(self, stop: Callable[[Exception | None], None]) -> None:
        """`stop` is called when the sink is not ready any more, with the error if it never will be again."""

    def leave(self, stop: Callable[[Exception | None], None]) -> None:
        """`stop` is not to be called any more. Idempotent."""


class Push:
    """Listens to the token stream of one choice and hands its deltas to a sink."""

    __slots__ = ("_advance", "_advance_tokens", "_choice", "_error", "_outbox", "_sink", "_stopped", "_stream")

    def __init__(
        self,
        choice: Choice,
        advance: Callable[[Choice, TokenEvent], list[Delta]],
        advance_tokens: Callable[[Choice, Sequence[int]], list[Delta]],
        sink: Sink,
    ) -> None:
        """
        Args:
            advance: makes deltas of an event of the choice.
            advance_tokens: the same for an event that has tokens and nothing else.
        """
        self._choice = choice
        self._stream: TokenStream = choice.stream
        self._advance = advance
        self._advance_tokens = advance_tokens
        self._sink = sink
        self._outbox = sink.outbox
        self._error: Exception | None = None
        self._stopped = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Pushes until the choice has ended, or until the sink is not ready; the stream can be read on then.

        Raises:
            Exception: what `advance` and the sink raise.
        """
        self._sink.follow(self._stop)
        self._stream.listen(self)
        try:
            await self._stopped
        finally:
            self._stop(None)
            error, self._error = self._error, None  # also where it is cancelled: its traceback knows this object
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback keeps this frame, which would keep it until a garbage collection

    def receive(self, event: TokenEvent) -> Outbox | None:
        """Takes one event; see `Listener`."""
        return self._hand_on(self._advance, event)

    def receive_tokens(self, token_ids: Sequence[int]) -> Outbox | None:
        """Takes new tokens; see `Listener`. They may end the choice, because a stop string ends in them."""
        return self._hand_on(self._advance_tokens, token_ids)

    def _hand_on(self, advance: Callable[[Choice, News], list[Delta]], news: News) -> Outbox | None:
        if self._choice.finish_reason is not None:  # the abort of a stop string may come back at once
            return None
        try:
            deltas = advance(self._choice, news)
            if not deltas:
                return None
            self._sink.take(deltas)
        except Exception as error:  # noqa: BLE001 - raised where somebody waits
            self._stop(error)
            return None
        if deltas[-1].finish_reason is not None:
            self._stop(None)
        return self._outbox

    def _stop(self, error: Exception | None) -> None:
        """Leaves what comes from now on to a reader, at once: other events may come before the waiting task runs."""
        if not self._stopped.done():
            self._error = error
            self._stopped.set_result(None)
        self._stream.listen(None)
        self._sink.leave(self._stop)
