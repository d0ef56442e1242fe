"""One output sequence of a request: the tokens of one engine stream become text."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.interface.types import FinishReason, TokenEvent, TokenLogprobs
from sampling.host.params import SamplingParams
from server.generation.generation_request import GenerationRequest
from server.generation.prompts import PreparedPrompt
from server.protocol.generation_fields import MAX_STOP_LENGTH
from server.text.detokenizer import HasTokenBytes, IncrementalDetokenizer
from server.text.stop_strings import StopStrings

if TYPE_CHECKING:  # it brings JAX, which takes a second to import
    from engine.client import TokenStream

_MAX_READ_BYTES = 4 * MAX_STOP_LENGTH  # of an answer that goes on; so many hold any stop string


@dataclass(slots=True)
class Delta:
    """A piece of one sequence's text; empty only where it ends a sequence whose text has all been delivered."""

    index: int  # answer j of prompt i has index i * n + j
    text: str
    token_ids: list[
        int
    ]  # generated since the sequence's previous delta; the text may lag behind by held-back characters
    finish_reason: FinishReason | None
    logprobs: list[TokenLogprobs] | None = None  # of each of the token ids, where asked for
    # Of each of the prompt's tokens, None of the first; in the sequence's first delta, where asked for.
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    matched_stop: str | int | None = None  # in the last delta, the stop string or the token that has ended the sequence


class OutputSequence:
    """Turns the tokens of one engine stream into deltas. The wire calls it a choice."""

    __slots__ = (
        "_detokenizer",
        "_echo",
        "_interval",
        "_is_exact",
        "_least_tokens",
        "_min_tokens",
        "_only_echoes",
        "_pending_ids",
        "_pending_logprobs",
        "_pending_prompt_logprobs",
        "_pending_text",
        "_stops",
        "finish_reason",
        "first_token_at",
        "index",
        "is_aborted",
        "last_token_at",
        "max_plain_tokens",
        "num_cached_tokens",
        "num_tokens",
        "stop_string",
        "stop_token_id",
        "stream",
        "submitted_at",
        "tells_progress",
    )

    def __init__(
        self,
        request: GenerationRequest,
        prompt: PreparedPrompt,
        index: int,
        params: SamplingParams,
        stream: TokenStream,
        tokenizer: HasTokenBytes,
    ) -> None:
        """The text of a sequence that goes on from first tokens in the prompt is what follows theirs."""
        streaming = request.streaming
        detokenizer, stops = IncrementalDetokenizer(tokenizer), _make_stops(request)
        min_tokens = params.min_tokens  # stop strings are not looked for in the text of so many tokens
        if request.num_prompt_output_tokens:
            begun = prompt.output_token_ids
            _read_begun(begun, min_tokens, tokenizer, detokenizer, stops)
            min_tokens = max(0, min_tokens - len(begun))
        elif request.echoes:
            _read_begun(prompt.token_ids, 0, tokenizer, detokenizer, None)
        self._interval = streaming.interval
        self.tells_progress = streaming.tells_progress
        self._is_exact = streaming.is_resumable
        # So many tokens that come together may become text in one go: none where one of them can end the answer, and
        # one where each is looked at apart.
        self.max_plain_tokens = 0 if stops is not None else 1 if self._is_exact else sys.maxsize
        self._least_tokens = 1  # of the next delta; the first one waits for no other tokens
        self._pending_text = ""  # until there are tokens enough
        self.index = index
        self.stream = stream
        self.num_tokens = 0
        self.num_cached_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.stop_string: str | None = None  # that has ended it
        self.stop_token_id: int | None = None  # the same
        self.is_aborted = False
        self._detokenizer = detokenizer
        self._stops = stops
        self._min_tokens = min_tokens
        self._echo = prompt.echo  # stands before the first text, and no stop string is looked for in it
        self._only_echoes = request.only_echoes  # the echo is the whole text, and the generated token is dropped
        self._pending_ids: list[int] = []  # tokens whose text is still held back
        self._pending_logprobs: list[TokenLogprobs] | None = None  # of the pending ids, where asked for
        self._pending_prompt_logprobs: list[TokenLogprobs | None] | None = None  # until there is a delta
        # Seconds of `time.perf_counter`; the generation sets them.
        self.submitted_at = 0.0
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None

    def advance(self, event: TokenEvent) -> list[Delta]:
        """Takes in one event; returns nothing where no text has become certain.

        The deltas of a resumable stream do not depend on how its tokens were merged: each token is looked at apart.
        """
        if not self._is_exact or len(event.token_ids) < 2:
            delta = self._advance(event)
            return [] if delta is None else [delta]
        deltas = []
        for one in _split(event):
            delta = self._advance(one)
            if delta is not None:
                deltas.append(delta)
            if self.finish_reason is not None:
                break  # tokens behind a stop string
        return deltas

    def _advance(self, event: TokenEvent) -> Delta | None:
        if self._only_echoes:
            event = _without_tokens(event)
        self.num_cached_tokens = event.num_cached_tokens
        token_ids, num_before = event.token_ids, self.num_tokens
        if event.finish_reason is FinishReason.STOP:
            # The token that ended the request is counted and has no text.
            text = self._decode(token_ids[:-1])
            if self.finish_reason is None:
                self._count(token_ids[-1:])
                self.stop_token_id = token_ids[-1]
        else:
            text = self._decode(token_ids)
        if event.logprobs is not None or event.prompt_logprobs is not None:
            self._take_logprobs(event, self.num_tokens - num_before)
        if self.finish_reason is None and event.finish_reason is not None:
            self.finish_reason = event.finish_reason
            text += self._flush()  # half a character that its tokens end with is left out
        return self._release(self._pending_text + text)

    def advance_tokens(self, token_ids: Sequence[int]) -> Delta | None:
        """`advance` for an event that has no more than `max_plain_tokens` tokens and nothing else."""
        self._pending_ids += token_ids
        self.num_tokens += len(token_ids)
        text = self._pending_text + self._detokenizer.decode(token_ids)
        if self._echo or self._pending_logprobs is not None or self._pending_prompt_logprobs is not None:
            return self._release(text)
        if not text or len(self._pending_ids) < self._least_tokens:
            self._pending_text = text
            return None
        delta = Delta(self.index, text, self._pending_ids, None)
        self._pending_ids, self._pending_text, self._least_tokens = [], "", self._interval
        return delta

    def _release(self, text: str) -> Delta | None:
        """All that is pending, with this text, if it is enough for a delta."""
        if self.finish_reason is None:
            if not text or len(self._pending_ids) < self._least_tokens:
                self._pending_text = text
                return None
        elif self.is_aborted:
            # The sequence may have ended by itself in the same moment. Whoever aborted it is told of the abort.
            self.finish_reason = FinishReason.ABORT
        if self._echo:
            text, self._echo = self._echo + text, ""
        delta = Delta(
            self.index,
            text,
            self._pending_ids,
            self.finish_reason,
            self._pending_logprobs,
            self._pending_prompt_logprobs,
            self.matched_stop,
        )
        self._pending_ids, self._pending_logprobs, self._pending_prompt_logprobs = [], None, None
        self._pending_text, self._least_tokens = "", self._interval
        return delta

    @property
    def matched_stop(self) -> str | int | None:
        """The stop string, or else the token, that has ended it; None where neither has."""
        if self.finish_reason is not FinishReason.STOP:
            return None
        return self.stop_token_id if self.stop_string is None else self.stop_string

    def abort(self) -> None:
        """Ends with ABORT after the tokens it already has, unless it has ended."""
        self.is_aborted = True
        if self.finish_reason is None:
            self.stream.abort()

    def _take_logprobs(self, event: TokenEvent, num_counted: int) -> None:
        """Keeps the logprobs of the event's first `num_counted` tokens; a stop string has cut the others off."""
        if event.logprobs is not None:
            if self._pending_logprobs is None:
                self._pending_logprobs = []
            self._pending_logprobs += event.logprobs[:num_counted]
        if event.prompt_logprobs is not None:
            self._pending_prompt_logprobs = event.prompt_logprobs

    def _decode(self, token_ids: list[int]) -> str:
        if self._stops is None:
            self._count(token_ids)
            return self._detokenizer.decode(token_ids)
        # One by one, so that tokens after a stop string are neither shown nor counted.
        text = ""
        for token_id in token_ids:
            self._count([token_id])
            text += self._feed(self._stops, self._detokenizer.decode([token_id]))
            if self.finish_reason is not None:
                break
        return text

    def _feed(self, stops: StopStrings, text: str) -> str:
        if self.num_tokens <= self._min_tokens:
            return text
        emit, stopped = stops.feed(text)
        if stopped is None:
            return emit
        self.finish_reason, self.stop_string = FinishReason.STOP, stopped
        self.stream.abort()
        return emit

    def _flush(self) -> str:
        """The text that was held back for stop strings, once no more tokens can come."""
        if self._stops is None or self.num_tokens <= self._min_tokens:
            return ""
        return self._stops.flush()

    def _count(self, token_ids: list[int]) -> None:
        self._pending_ids += token_ids
        self.num_tokens += len(token_ids)


def _make_stops(request: GenerationRequest) -> StopStrings | None:
    """The matcher of one sequence's stop strings; None where there are none, so that tokens need no look one by one."""
    return StopStrings(request.stops, include_stop=request.include_stop) if request.stops else None


def _read_begun(
    token_ids: Sequence[int],
    min_tokens: int,
    tokenizer: HasTokenBytes,
    detokenizer: IncrementalDetokenizer,
    stops: StopStrings | None,
) -> None:
    """Lets text and stop strings stand where they stood behind an answer's first tokens, of which the end is read."""
    most = 4 if stops is None else _MAX_READ_BYTES
    first, num_bytes = len(token_ids), 0
    while first > 0 and num_bytes < most:
        first -= 1
        num_bytes += len(tokenizer.token_bytes[token_ids[first]])
    searched = max(first, min_tokens)  # the first token whose text may belong to a stop string
    detokenizer.decode(token_ids[first:searched])
    text = detokenizer.decode(token_ids[searched:])
    if stops is not None:
        stops.begin_behind(text)


def _split(event: TokenEvent) -> Iterator[TokenEvent]:
    """`event` as one event for each of its tokens, the end in the last of them. It has at least one token."""
    last = len(event.token_ids) - 1
    for at, token_id in enumerate(event.token_ids):
        yield event._replace(
            token_ids=[token_id],
            finish_reason=event.finish_reason if at == last else None,
            error=event.error if at == last else None,
            logprobs=None if event.logprobs is None else event.logprobs[at : at + 1],
            prompt_logprobs=event.prompt_logprobs if at == 0 else None,
        )


def _without_tokens(event: TokenEvent) -> TokenEvent:
    """`event` of a sequence that echoes its prompt and may have no tokens."""
    reason = FinishReason.LENGTH if event.finish_reason is FinishReason.STOP else event.finish_reason
    return event._replace(token_ids=[], logprobs=None if event.logprobs is None else [], finish_reason=reason)
