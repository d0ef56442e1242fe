"""The stream of one request's tokens, in which the events for a slow reader are merged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from engine.interface.types import FinishReason, PromptProgress, TokenEvent, TokenLogprobs
from engine.schedule.request import Request
from engine.schedule.request_event import RequestEvent
from sampling.host.params import SamplingParams
from sampling.logprobs import BEST, BEST_IDS, LISTED, MASKED, OWN, RANK

NOT_FINITE = "the model computes numbers that are not finite: its weights are damaged, or too large for their type"


class Outbox(Protocol):
    """Collects what the listeners of one connection write, to be sent at once. It is compared by identity."""

    def flush(self) -> None:
        """Sends what it holds. Does not raise."""


class Listener(Protocol):
    """Receives a stream's events as they come, without a waiting task. Its methods neither raise nor wait.

    They return the outbox to be flushed once no more events are there for now; None: nothing is to be sent.
    """

    def receive(self, event: TokenEvent) -> Outbox | None:
        """Takes one event of one step."""

    def receive_tokens(self, token_ids: Sequence[int]) -> Outbox | None:
        """`receive` for an event with new tokens and nothing else, which is nearly every one."""


class TokenStream:
    """The tokens of one request, as an async iterator of events that ends after the one with a finish_reason.

    Events that arrive while the reader is busy are merged into one, so that a slow reader needs no queue. A listener,
    instead of a reader, is called with the events of each step.
    """

    __slots__ = (
        "_abort",
        "_error",
        "_finish_reason",
        "_has_only_tokens",
        "_is_dead_end",
        "_is_done",
        "_listener",
        "_logprobs",
        "_num_cached_tokens",
        "_params",
        "_pooled",
        "_progress",
        "_prompt_logprobs",
        "_token_ids",
        "_waiter",
        "admitted_at",
        "request_id",
        "timers",
    )

    def __init__(self, request: Request, abort: Callable[[str], None]) -> None:
        # The stream does not keep the request, which keeps the stream: as a cycle they would hold the tokens until a
        # garbage collection.
        self.request_id = request.request_id
        self._params = request.params
        # Before the end, all events have tokens only, except reports of progress, which have none.
        self._has_only_tokens = (
            request.params.logprobs is None and request.params.prompt_logprobs is None and not request.poolings
        )
        self._abort = abort
        self._token_ids: list[int] = []
        self._finish_reason: FinishReason | None = None
        self._error: str | None = None
        self._is_dead_end = False
        self._num_cached_tokens = 0
        # Seconds of `time.perf_counter` when the request left the queue for the first time, as far as events tell.
        self.admitted_at: float | None = None
        self._logprobs: list[TokenLogprobs] | None = None if request.params.logprobs is None else []
        self._prompt_logprobs: list[TokenLogprobs | None] | None = None
        self._pooled: np.ndarray | None = None
        self._progress: PromptProgress | None = None  # the last report that was not read
        self._is_done = False  # the last event has been read
        self._waiter: asyncio.Future[None] | None = None
        self._listener: Listener | None = None
        self.timers: list[asyncio.TimerHandle] = []  # cancelled when the stream ends

    def __aiter__(self) -> TokenStream:
        return self

    async def __anext__(self) -> TokenEvent:
        if self._is_done:
            raise StopAsyncIteration
        await self.wait()
        return self.take()

    async def wait(self, others: Iterable[TokenStream] = ()) -> None:
        """Waits until this stream, or one of the others that are read together with it, has something to take."""
        streams = (self, *others)
        if any(stream.has_news for stream in streams):
            return
        for stream in streams:
            if stream._waiter is not None:
                raise RuntimeError(f"stream {stream.request_id!r} is being read by two readers")
        waiter = asyncio.get_running_loop().create_future()
        for stream in streams:
            stream._waiter = waiter
        try:
            await waiter
        finally:
            for stream in streams:
                stream._waiter = None

    @property
    def has_news(self) -> bool:
        """Whether there is something to take; always true of a stream that has ended."""
        return bool(self._token_ids) or self._finish_reason is not None or self._progress is not None

    def take(self) -> TokenEvent:
        """The events that wait for the reader, as one."""
        token_ids, self._token_ids = self._token_ids, []
        progress, self._progress = self._progress, None
        logprobs, prompt_logprobs = self._logprobs, self._prompt_logprobs
        self._logprobs, self._prompt_logprobs = None if logprobs is None else [], None
        self._is_done = self._finish_reason is not None
        return TokenEvent(
            token_ids,
            self._finish_reason,
            self._num_cached_tokens,
            self._error,
            logprobs,
            prompt_logprobs,
            self._is_dead_end,
            self._pooled,
            None if token_ids else progress,
        )

    def listen(self, listener: Listener | None) -> None:
        """Lets the only `listener` receive all events, those that wait already first; None: a reader again."""
        self._listener = listener
        if listener is not None and self.has_news and not self._is_done:
            _flush(listener.receive(self.take()))

    def abort(self) -> None:
        """Ends the request; the stream still ends with one event. Later calls have no effect."""
        if self._finish_reason is None:
            self._abort(self.request_id)

    def put(self, event: RequestEvent) -> Outbox | None:
        """Gives an event to the listener, or merges it into what waits for the reader. Called in the asyncio thread.

        Events after the last one are ignored. Returns the outbox that the caller has to flush after all events.
        """
        if self._finish_reason is not None:
            return None
        if self._has_only_tokens and event.finish_reason is None and event.progress is None:
            return self.put_tokens(event.request, event.token_ids)
        listener = self._listener
        if _is_broken(event):
            if event.finish_reason is None:
                self.abort()
            self._finish(FinishReason.ERROR, NOT_FINITE)
            return None if listener is None else listener.receive(self.take())
        self._token_ids += event.token_ids
        self._num_cached_tokens = event.request.num_cached_tokens
        self.admitted_at = event.request.admitted_at
        if self._logprobs is not None and event.logprobs is not None:
            self._logprobs += read_logprobs(event.logprobs, self._params)
        if event.prompt_logprobs is not None:
            self._prompt_logprobs = read_prompt_logprobs(event.prompt_logprobs, self._params)
        if event.progress is not None:
            self._progress = event.progress
        if event.pooled is not None:
            self._pooled = event.pooled
        self._is_dead_end = event.is_dead_end
        self._finish(event.finish_reason, event.error)
        return None if listener is None else listener.receive(self.take())

    def put_tokens(self, request: Request, token_ids: Sequence[int]) -> Outbox | None:
        """`put` for new tokens of the stream's request and nothing else, which is nearly every event."""
        if self._finish_reason is not None:
            return None
        listener = self._listener
        if listener is not None:
            return listener.receive_tokens(token_ids)
        self._token_ids += token_ids
        self._num_cached_tokens = request.num_cached_tokens
        self.admitted_at = request.admitted_at
        self._wake()
        return None

    def end(self, finish_reason: FinishReason, error: str | None) -> None:
        """Ends the stream without an event of the engine; has no effect if it has ended."""
        if self._finish_reason is None:
            self._finish(finish_reason, error)
            listener = self._listener
            if listener is not None:
                _flush(listener.receive(self.take()))

    def _finish(self, finish_reason: FinishReason | None, error: str | None) -> None:
        self._finish_reason, self._error = finish_reason, error
        if finish_reason is not None:
            for timer in self.timers:
                timer.cancel()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _is_broken(event: RequestEvent) -> bool:
    """Whether logprobs are not numbers: so are all at a position where any logit is not one, or is infinite."""
    pieces = [*(event.prompt_logprobs or ()), *([] if event.logprobs is None else [event.logprobs])]
    return any(bool(np.isnan(columns.view(np.float32)[:, OWN]).any()) for columns in pieces)


def _flush(outbox: Outbox | None) -> None:
    if outbox is not None:
        outbox.flush()


def read_logprobs(columns: np.ndarray, params: SamplingParams) -> list[TokenLogprobs]:
    """The logprobs of output tokens, from int32[num_tokens, NUM_COLUMNS] (sampling/logprobs.py)."""
    return _read(columns, params.logprobs or 0, len(params.logprob_token_ids))


def read_prompt_logprobs(pieces: Sequence[np.ndarray], params: SamplingParams) -> list[TokenLogprobs | None]:
    """The logprobs of a whole prompt, of its pieces in order; None for its first token, which follows nothing."""
    of_piece = [_read(columns, params.prompt_logprobs or 0, 0) for columns in pieces]
    return [None, *(logprobs for piece in of_piece for logprobs in piece)]


def _read(columns: np.ndarray, num_best: int, num_listed: int) -> list[TokenLogprobs]:
    floats = columns.view(np.float32)
    return [
        TokenLogprobs(own, rank, list(zip(best_ids, best, strict=True)), listed, masked)
        for own, rank, best_ids, best, listed, masked in zip(
            floats[:, OWN].tolist(),
            columns[:, RANK].tolist(),
            columns[:, BEST_IDS : BEST_IDS + num_best].tolist(),
            floats[:, BEST : BEST + num_best].tolist(),
            floats[:, LISTED : LISTED + num_listed].tolist(),
            floats[:, MASKED].tolist(),
            strict=True,
        )
    ]
