"""One request's answers as a stream of deltas, from which SSE, WebSocket messages and JSON bodies are made.

The engine's mailboxes are the only buffers. A generation takes tokens from them when its reader
asks for more, so a reader slower than the model gets what has piled up as one delta. Nothing is
lost, and nothing grows but a list of token ids, which `max_tokens` bounds.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self, TypeAlias

from engine.interface.types import DeadEnd, EngineError, FinishReason, PromptProgress, TokenEvent, TokenLogprobs
from server.generation.choice import Choice, Delta
from server.generation.generation_request import GenerationRequest
from server.generation.metrics import Metrics
from server.generation.prompts import PreparedPrompt
from server.generation.push import Push, Sink
from server.structured_output.output_grammar import OutputGrammar
from server.text.detokenizer import HasTokenTexts

if TYPE_CHECKING:  # it brings JAX, which takes a second to import
    from engine.client import EngineClient

# Writes how one answer waits for its first token; called with the answer's index, and while nothing else is written.
TellProgress: TypeAlias = Callable[[PromptProgress, int], Awaitable[None]]


class Watcher(Protocol):
    """Who keeps a record of a request."""

    def begin(self, prompts: Sequence[PreparedPrompt]) -> None:
        """Every answer to these prompts is in the engine's queue."""

    def note(self, choice: Choice, event: TokenEvent) -> None:
        """`choice` has taken in an event of its stream."""


QUEUED_AT_ONCE = 16  # answers of one request in one turn of the loop, for which all other streams wait

# From the most complete answer to the least complete one.
_SEVERITY = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.TIMEOUT, FinishReason.ABORT)


class Usage(NamedTuple):
    """How many tokens a generation has taken in and made."""

    num_prompt_tokens: int
    num_completion_tokens: int
    num_cached_tokens: int  # of the prompt tokens, those that came from the prefix cache


class Timings(NamedTuple):
    """How long the parts of one answer took, in seconds as its client sees them."""

    time_to_first_token: float  # since the submission
    queue_time: float  # between the submission and the first step
    generation_time: float  # between the queue and the last token
    mean_inter_token_latency: float | None  # None of a single token
    num_tokens: int

    @property
    def tokens_per_second(self) -> float:
        """Of the time outside the queue."""
        return self.num_tokens / self.generation_time


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice, read to its end."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    logprobs: list[TokenLogprobs] | None = None  # of each of the token ids, where asked for
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # of the prompt's tokens, None of the first

    @property
    def cumulative_logprob(self) -> float | None:
        """The logprob of all tokens together; None where logprobs were not asked for."""
        return None if self.logprobs is None else sum(logprobs.logprob for logprobs in self.logprobs)

    @property
    def mean_logprob(self) -> float:
        """The average logprob of a token. An answer without tokens is below all others."""
        total = self.cumulative_logprob
        return -math.inf if total is None or not self.token_ids else total / len(self.token_ids)


class Generation:
    """The answers to one request, read as `async with` and `async for deltas in generation`.

    Each item is the list of deltas, of one or several choices, that became ready since the last
    item. The iteration ends after every choice has had its delta with a finish_reason. Leaving the
    context, in whatever way, aborts what still runs.
    """

    def __init__(
        self,
        choices: Sequence[Choice],
        prompts: Sequence[PreparedPrompt],
        metrics: Metrics,
        tokenizer: HasTokenTexts,
        tell_progress: TellProgress | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        """
        Args:
            tokenizer: by which the answers' tokens become text.
            tell_progress: called while the generation is read.
            watcher: told of the events that are read.
        """
        self._watcher = watcher
        self._tell_progress = tell_progress
        self.prompts = prompts
        self.tokenizer = tokenizer
        self.on_deltas: Callable[[list[Delta]], None] | None = None  # is shown all deltas as they come
        self._choices = choices
        self._metrics = metrics
        self._num_open = len(choices)
        self._submitted_at = time.perf_counter()
        self.time_to_first_token: float | None = None  # seconds
        metrics.num_prompt_tokens += sum(len(prompt.token_ids) for prompt in prompts)

    @classmethod
    async def submit(
        cls,
        request: GenerationRequest,
        prompts: Sequence[PreparedPrompt],
        *,
        engine: EngineClient,
        tokenizer: HasTokenTexts,
        metrics: Metrics,
        rules: Sequence[OutputGrammar | None] = (),
        tell_progress: TellProgress | None = None,
        watcher: Watcher | None = None,
    ) -> Self:
        """Queues every prompt as often as it is to be answered. Where one is refused, none is left in the queue.

        The loop has a turn behind each QUEUED_AT_ONCE answers.

        Args:
            tokenizer: by which the answers' tokens become text.
            rules: what every answer to each prompt has to follow; empty where that may be anything.
            tell_progress: of the first answer to each prompt, whose prompt the others share; None: it is not asked for.
            watcher: keeps a record of the request; None: nobody does.

        Raises:
            QueueFull, EngineError: from the engine.
        """
        choices: list[Choice] = []
        try:
            for prompt, rules_of_prompt in zip_longest(prompts, rules):
                for index, params in enumerate(prompt.params):
                    if choices and len(choices) % QUEUED_AT_ONCE == 0:
                        await asyncio.sleep(0)
                    choice = Choice.submit(
                        request,
                        len(choices),
                        prompt.token_ids,
                        params,
                        engine=engine,
                        tokenizer=tokenizer,
                        metrics=metrics,
                        matcher=None if rules_of_prompt is None else rules_of_prompt.matcher(),
                        echo=prompt.echo,
                        wants_progress=tell_progress is not None and index == 0,
                    )
                    choices.append(choice)
        except BaseException:
            for choice in choices:
                choice.stream.abort()
            raise
        if watcher is not None:
            watcher.begin(prompts)
        return cls(choices, prompts, metrics, tokenizer, tell_progress, watcher)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Delta]:
        """
        Raises:
            EngineError: the engine could not go on with one of the streams.
        """
        try:
            while self._num_open:
                deltas = await self._next_deltas()
                if deltas:
                    if self.on_deltas is not None:
                        self.on_deltas(deltas)
                    return deltas
        except EngineError:
            self._num_open = 0  # nothing more is to come, of no choice
            raise
        raise StopAsyncIteration

    async def push(self, sink: Sink[Delta]) -> None:
        """Hands deltas to `sink` as they come, until nothing more is to come or the sink is not ready.

        It may be called between two items of the iteration. It returns at once where the sink is not ready, where
        `on_deltas` is to see all deltas, and while an answer has yet to begin: what comes with its first tokens, and
        the reports of progress before them, may need a task.

        Raises:
            EngineError: the engine could not go on with one of the streams.
            ConnectionError: from the sink.
        """
        if not self._num_open or not sink.is_ready or self.on_deltas is not None:
            return
        choices = self._open_choices()
        if not all(choice.num_tokens for choice in choices):
            return
        try:
            await Push(choices, self._advance, self._advance_tokens, sink).run()
        except EngineError:
            self._num_open = 0  # nothing more is to come, of no choice
            raise

    @property
    def num_choices(self) -> int:
        return len(self._choices)

    @property
    def stream_ids(self) -> list[str]:
        """By which the engine knows the choices."""
        return [choice.stream.request_id for choice in self._choices]

    @property
    def usage(self) -> Usage:
        """The counts up to the last delta read. A prompt counts once, however many answers it gets."""
        first_choices = self._choices[:: len(self._choices) // len(self.prompts)]
        return Usage(
            num_prompt_tokens=sum(len(prompt.token_ids) for prompt in self.prompts),
            num_completion_tokens=sum(choice.num_tokens for choice in self._choices),
            num_cached_tokens=sum(choice.num_cached_tokens for choice in first_choices),
        )

    @property
    def finish_reasons(self) -> list[FinishReason | None]:
        """The reason of each choice, by index; None while the choice runs."""
        return [choice.finish_reason for choice in self._choices]

    @property
    def stop_strings(self) -> list[str | None]:
        """The stop string that has ended each choice, by index; None where it was none."""
        return [choice.stop_string for choice in self._choices]

    @property
    def finish_reason(self) -> FinishReason | None:
        """The least complete of the choices' reasons; None while one runs."""
        reasons = [choice.finish_reason for choice in self._choices if choice.finish_reason is not None]
        return max(reasons, key=_SEVERITY.index) if len(reasons) == len(self._choices) else None

    @property
    def timings(self) -> Timings | None:
        """Up to the last token read; None before it, and of several answers, whose times say little together."""
        if len(self._choices) != 1:
            return None
        (choice,) = self._choices
        first, last, admitted_at = self.time_to_first_token, choice.last_token_at, choice.stream.admitted_at
        if first is None or last is None or admitted_at is None:
            return None
        queue_time = max(admitted_at - self._submitted_at, 0.0)
        num_gaps = choice.num_tokens - 1
        return Timings(
            time_to_first_token=first,
            queue_time=queue_time,
            generation_time=max(last - self._submitted_at - queue_time, 1e-9),  # a clock may stand still
            mean_inter_token_latency=(last - self._submitted_at - first) / num_gaps if num_gaps else None,
            num_tokens=choice.num_tokens,
        )

    @property
    def duration(self) -> float:
        """Seconds since the submission."""
        return time.perf_counter() - self._submitted_at

    def abort(self) -> None:
        """Every choice that has not ended ends with ABORT, after the tokens it already has."""
        for choice in self._choices:
            choice.abort()

    async def aclose(self) -> None:
        """Aborts what runs; nothing more will be read. Idempotent."""
        self.abort()
        self._metrics.num_finished[FinishReason.ABORT] += self._num_open
        self._num_open = 0

    async def collect(self, watch: Callable[[list[Delta]], None] | None = None) -> list[Answer]:
        """Reads to the end and joins the deltas of each choice; `watch` sees them as they come.

        As many answers come back to each prompt as are wanted. Where more were generated, the ones
        with the highest mean logprob come back, best first.
        """
        parts: list[list[Delta]] = [[] for _ in self._choices]
        async for deltas in self:
            if watch is not None:
                watch(deltas)
            for delta in deltas:
                parts[delta.index].append(delta)
        answers = [
            _join(choice.index, parts[choice.index], choice.finish_reason)
            for choice in self._choices
            if choice.finish_reason is not None
        ]
        return _choose(answers, self.prompts)

    async def _next_deltas(self) -> list[Delta]:
        choices = self._open_choices()
        first, *others = [choice.stream for choice in choices]
        await first.wait(others)
        deltas: list[Delta] = []
        for choice in choices:
            if choice.stream.has_news:
                event = choice.stream.take()
                if event.progress is not None:
                    await self._tell(choice, event.progress)
                deltas += self._advance(choice, event)
        return deltas

    def _open_choices(self) -> list[Choice]:
        return [choice for choice in self._choices if choice.finish_reason is None]

    async def _tell(self, choice: Choice, progress: PromptProgress) -> None:
        if self._tell_progress is not None:
            await self._tell_progress(progress, choice.index)

    def _advance(self, choice: Choice, event: TokenEvent) -> list[Delta]:
        if event.finish_reason is FinishReason.ERROR:
            error = DeadEnd if event.is_dead_end else EngineError
            raise error(event.error or "the engine failed on this request")
        num_before = choice.num_tokens
        deltas = choice.advance(event)
        if self._watcher is not None:
            self._watcher.note(choice, event)
        num_new = choice.num_tokens - num_before
        if num_new:
            if self.time_to_first_token is None:
                self.time_to_first_token = self.duration
            choice.observe(num_new, self._submitted_at)
            self._metrics.num_generation_tokens += num_new
        if choice.finish_reason is not None:
            self._num_open -= 1
            self._metrics.num_finished[choice.finish_reason] += 1
            if self._num_open == 0:
                self._metrics.e2e_request_latency.observe(self.duration)
        return deltas

    def _advance_tokens(self, choice: Choice, token_ids: Sequence[int]) -> list[Delta]:
        """`_advance` for an event that has tokens and nothing else, behind the first tokens of the choice."""
        num_new = len(token_ids)
        if num_new > choice.max_plain_tokens or self._watcher is not None:
            return self._advance(choice, TokenEvent(list(token_ids), None, choice.num_cached_tokens))
        delta = choice.advance_tokens(token_ids)
        choice.observe(num_new, self._submitted_at)
        self._metrics.num_generation_tokens += num_new
        return [] if delta is None else [delta]


def _join(index: int, parts: Sequence[Delta], finish_reason: FinishReason) -> Answer:
    logprobs = [delta.logprobs for delta in parts if delta.logprobs is not None]
    return Answer(
        index,
        "".join(delta.text for delta in parts),
        [token_id for delta in parts for token_id in delta.token_ids],
        finish_reason,
        list(chain.from_iterable(logprobs)) if logprobs else None,
        next((delta.prompt_logprobs for delta in parts if delta.prompt_logprobs is not None), None),
    )


def _choose(answers: Sequence[Answer], prompts: Sequence[PreparedPrompt]) -> list[Answer]:
    """The answers that are wanted to each prompt, numbered anew."""
    chosen: list[Answer] = []
    rest = iter(answers)
    for prompt in prompts:
        of_prompt = list(islice(rest, len(prompt.params)))
        if prompt.num_wanted < len(of_prompt):
            of_prompt.sort(key=lambda answer: -answer.mean_logprob)
        chosen += of_prompt[: prompt.num_wanted]
    return [replace(answer, index=index) for index, answer in enumerate(chosen)]
