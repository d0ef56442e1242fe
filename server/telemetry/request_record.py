"""The record of one request in the request log: its prompts, parameters, tokens and times."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Sequence
from enum import StrEnum

from engine.interface.types import FinishReason
from sampling.host.params import SamplingParams
from server.generation.answers import GenerationStats
from server.generation.observer import GenerationObserver
from server.generation.output_sequence import Delta, OutputSequence
from server.generation.prompts import PreparedPrompt
from server.protocol.errors import ApiError, to_api_error

BASE_BYTES = 2048  # of a record without prompts
ANSWER_BYTES = 512
TOKEN_ID_BYTES = 40  # an entry of a list or tuple, and the integer that it names
BIAS_BYTES = 128  # an entry, the pair, its integer and its float
TUPLE_BYTES = 48  # with the entry that names it
OUTPUT_TOKEN_BYTES = 4
EVENT_BYTES = 12


class RequestState(StrEnum):
    """The state of a request; the values are the wire names."""

    PREPARING = "preparing"  # its prompt is not tokenised yet, or its model is being loaded
    WAITING = "waiting"  # for its first token
    ANSWERING = "answering"
    DONE = "done"
    REFUSED = "refused"  # before it was in the engine's queue
    FAILED = "failed"
    LEFT = "left"  # its client has left before the end


class AnswerRecord:
    """The tokens of one answer, and the events that brought them."""

    __slots__ = ("admitted_at", "counts", "finish_reason", "num_cached_tokens", "stop_string", "times", "token_ids")

    def __init__(self) -> None:
        self.token_ids = array("i")
        self.times = array("d")  # of each event, in seconds since the request came
        self.counts = array("i")  # tokens of each event
        self.num_cached_tokens = 0
        self.admitted_at: float | None = None  # seconds since the request came
        self.finish_reason: FinishReason | None = None
        self.stop_string: str | None = None


class RequestRecord(GenerationObserver):
    """Everything that the log has of one request; an observer of its generation.

    Other threads than asyncio's may read it: they first copy what still grows, each array in one call.
    """

    __slots__ = (
        "_grow", "answers", "arrived", "asked", "began", "ended_after", "error", "ids", "is_kept", "model", "num_bytes",
        "number", "prompts", "route", "state", "tenant",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        ids: Sequence[str],
        tenant: str,
        model: str | None,
        grow: Callable[[RequestRecord, int], None],
    ) -> None:
        """`number` is counted by the log; `grow` is called with the bytes that the record takes from now on."""
        self._grow = grow
        self.number = number
        self.ids = tuple(dict.fromkeys(ids))
        self.tenant = tenant
        self.model = model
        self.route: str | None = None  # of a request that was refused before anything else was known of it
        self.arrived = time.time()
        self.began = time.perf_counter()
        self.state = RequestState.PREPARING
        self.ended_after: float | None = None  # seconds
        self.error: ApiError | None = None
        self.asked = b""  # JSON, of `encode_request`
        self.prompts: Sequence[PreparedPrompt] = ()
        self.answers: list[AnswerRecord] = []
        self.num_bytes = BASE_BYTES
        self.is_kept = True  # False: others have taken its place, and nothing more is noted

    def ask(self, asked: bytes) -> None:
        """Stores the request, encoded as JSON."""
        self.asked = asked
        self._grow(self, len(asked))

    def submitted(self, prompts: Sequence[PreparedPrompt]) -> None:
        self.state = RequestState.WAITING
        num_answers = sum(len(prompt.params) for prompt in prompts)
        num_bytes = sum(TOKEN_ID_BYTES * len(prompt.token_ids) + 4 * len(prompt.echo) for prompt in prompts)
        num_bytes += _bytes_of(prompts[0].params[0])  # all answers share its tuples
        self._grow(self, num_bytes + ANSWER_BYTES * num_answers)
        if self.is_kept:
            self.prompts = prompts
            self.answers = [AnswerRecord() for _ in range(num_answers)]

    def tokens(self, sequence: OutputSequence, token_ids: Sequence[int], deltas: Sequence[Delta], now: float) -> None:
        if not self.is_kept:
            return
        answer, num_tokens = self.answers[sequence.index], len(token_ids)
        answer.times.append(now - self.began)  # before the tokens: readers see no token without a time
        answer.counts.append(num_tokens)
        answer.token_ids.extend(token_ids)
        answer.num_cached_tokens = sequence.num_cached_tokens
        if answer.admitted_at is None and sequence.stream.admitted_at is not None:
            answer.admitted_at = sequence.stream.admitted_at - self.began
        answer.finish_reason, answer.stop_string = sequence.finish_reason, sequence.stop_string
        if num_tokens:
            self.state = RequestState.ANSWERING
        self._grow(self, OUTPUT_TOKEN_BYTES * num_tokens + EVENT_BYTES)

    def finished(self, stats: GenerationStats | None, error: BaseException | None) -> None:
        self.end(error)

    def end(self, error: BaseException | None = None) -> None:
        """Sets the end state. An error's traceback is not kept, because it would keep frames alive."""
        self.ended_after = time.perf_counter() - self.began
        if error is None:
            self.state = RequestState.DONE
        elif isinstance(error, asyncio.CancelledError | GeneratorExit | ConnectionError):
            self.state = RequestState.LEFT
        else:
            told = to_api_error(error) if isinstance(error, Exception) else ApiError(type(error).__name__, status=500)
            self.error = ApiError(told.message, status=told.status, param=told.param, code=told.code)
            self.state = RequestState.FAILED if self.prompts else RequestState.REFUSED

    def drop(self) -> None:
        """Removes its content; the log has evicted it."""
        self.is_kept = False
        self.asked, self.prompts, self.answers = b"", (), []


def _bytes_of(params: SamplingParams) -> int:
    """Counts the bytes of parameters that may be long; one sequence breaker may match half of the vocabulary."""
    lists = (params.dry_breaker_ids, params.allowed_token_ids or (), params.stop_token_ids, params.logprob_token_ids)
    return (
        TOKEN_ID_BYTES * sum(map(len, (*lists, *params.bad_words)))
        + TUPLE_BYTES * len(params.bad_words)
        + BIAS_BYTES * len(params.logit_bias)
    )
