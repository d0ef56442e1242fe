"""The output sequences of one request, read as a stream of deltas.

The engine's mailboxes are the only buffers. A generation takes tokens from them when its reader asks for more, so a
reader slower than the model gets what has piled up as one delta. Nothing is lost, and nothing grows but a list of token
ids, which `max_tokens` bounds.
"""

import time
from collections.abc import Callable, Sequence
from typing import Self

from engine.interface.types import DeadEnd, EngineError, FinishReason, PromptProgress, TokenEvent, WaitStage
from server.generation.answers import Answer, GenerationStats, Timings, Usage, choose_best, join, least_complete
from server.generation.observer import GenerationObserver, tell_finished
from server.generation.output_sequence import Delta, OutputSequence
from server.generation.prompts import PreparedPrompt
from server.generation.push import Push, Sink
from server.text.detokenizer import HasTokenTexts


class Generation:
    """The output sequences of one request, used as `async with` and read by `async for deltas in generation`.

    Each item has the deltas that became ready since the last item. The iteration ends after every sequence has had its
    delta with a finish_reason. Leaving the context, in whatever way, aborts what still runs.
    """

    def __init__(
        self,
        sequences: Sequence[OutputSequence],
        prompts: Sequence[PreparedPrompt],
        tokenizer: HasTokenTexts,
        observers: Sequence[GenerationObserver] = (),
    ) -> None:
        """Tells the observers that the request is submitted, with all its sequences in the engine's queue."""
        self.prompts = prompts
        self.tokenizer = tokenizer
        self.time_to_first_token: float | None = None  # seconds
        self._sequences = sequences
        self._observers = observers
        base = GenerationObserver
        self._on_progress = [
            observer.progress for observer in observers if type(observer).progress is not base.progress
        ]
        self._on_tokens = [observer.tokens for observer in observers if type(observer).tokens is not base.tokens]
        self._num_open = len(sequences)
        self._ended_at: float | None = None
        self._is_finished = False  # the observers know
        self._submitted_at = time.perf_counter()
        for sequence in sequences:
            sequence.submitted_at = self._submitted_at
        for observer in observers:
            observer.submitted(prompts)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._close(error)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Delta]:
        """Raises EngineError: the engine could not go on with one of the streams."""
        try:
            while self._num_open:
                deltas = await self._next_deltas()
                if deltas:
                    return deltas
        except EngineError as error:
            self._fail(error)
            raise
        self._finish(None)
        raise StopAsyncIteration

    async def push(self, sink: Sink[Delta]) -> None:
        """Hands deltas to `sink` as they come, until nothing more is to come or the sink is not ready.

        It returns at once while a sequence has yet to begin: its first tokens and the progress before them may need a
        task. Raises EngineError for a failed stream, ConnectionError from the sink.
        """
        if not self._num_open or not sink.is_ready:
            return
        sequences = self._open_sequences()
        if not all(sequence.num_tokens for sequence in sequences):
            return
        try:
            await Push(sequences, self._advance, self._advance_tokens, sink).run()
        except EngineError as error:
            self._fail(error)
            raise

    async def collect(self, watch: Callable[[list[Delta]], None] | None = None) -> list[Answer]:
        """Joins all deltas of each sequence that `choose_best` takes; `watch` sees them as they come."""
        deltas_of: list[list[Delta]] = [[] for _ in self._sequences]
        async for deltas in self:
            if watch is not None:
                watch(deltas)
            for delta in deltas:
                deltas_of[delta.index].append(delta)
        answers = [
            join(sequence.index, deltas_of[sequence.index], sequence.finish_reason)
            for sequence in self._sequences
            if sequence.finish_reason is not None
        ]
        return choose_best(answers, self.prompts)

    @property
    def num_choices(self) -> int:
        return len(self._sequences)

    @property
    def stream_ids(self) -> list[str]:
        """The engine's ids of the sequences."""
        return [sequence.stream.request_id for sequence in self._sequences]

    @property
    def usage(self) -> Usage:
        """The counts up to the last delta read. A prompt counts once, however many answers it gets."""
        first_sequences = self._sequences[:: len(self._sequences) // len(self.prompts)]
        return Usage(
            num_prompt_tokens=sum(len(prompt.token_ids) for prompt in self.prompts),
            num_completion_tokens=sum(sequence.num_tokens for sequence in self._sequences),
            num_cached_tokens=sum(sequence.num_cached_tokens for sequence in first_sequences),
            num_image_tokens=sum(picture.num_tokens for prompt in self.prompts for picture in prompt.pictures),
        )

    @property
    def finish_reasons(self) -> list[FinishReason | None]:
        """By sequence; None while it runs."""
        return [sequence.finish_reason for sequence in self._sequences]

    @property
    def stop_strings(self) -> list[str | None]:
        """The stop string that has ended each sequence; None where it was none."""
        return [sequence.stop_string for sequence in self._sequences]

    @property
    def finish_reason(self) -> FinishReason | None:
        """The least complete of the sequences' reasons; None while one runs."""
        return least_complete(self.finish_reasons)

    @property
    def timings(self) -> Timings | None:
        """Up to the last token read; None before it, and of several sequences, whose times say little together."""
        if len(self._sequences) != 1:
            return None
        (sequence,) = self._sequences
        first, last, admitted_at = self.time_to_first_token, sequence.last_token_at, sequence.stream.admitted_at
        if first is None or last is None or admitted_at is None:
            return None
        queue_time = max(admitted_at - self._submitted_at, 0.0)
        num_gaps = sequence.num_tokens - 1
        return Timings(
            time_to_first_token=first,
            queue_time=queue_time,
            generation_time=max(last - self._submitted_at - queue_time, 1e-9),  # a clock may stand still
            mean_inter_token_latency=(last - self._submitted_at - first) / num_gaps if num_gaps else None,
            num_tokens=sequence.num_tokens,
        )

    @property
    def duration(self) -> float:
        """Seconds between the submission and the end, or until now."""
        return (time.perf_counter() if self._ended_at is None else self._ended_at) - self._submitted_at

    def abort(self) -> None:
        """Every sequence that has not ended ends with ABORT, after the tokens it already has."""
        for sequence in self._sequences:
            sequence.abort()

    async def aclose(self) -> None:
        """Aborts what runs; nothing more will be read. Idempotent."""
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        self.abort()
        self._num_open = 0
        self._finish(error)

    def _fail(self, error: EngineError) -> None:
        self._num_open = 0  # nothing more is to come, of no sequence
        self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        if self._is_finished:
            return
        self._is_finished = True
        if self._observers:
            stats = GenerationStats(
                self.usage, self.finish_reasons, self.time_to_first_token, self.timings, self.duration,
                max(sequence.num_tokens for sequence in self._sequences),
            )  # fmt: skip
            tell_finished(self._observers, stats, error)

    async def _next_deltas(self) -> list[Delta]:
        sequences = self._open_sequences()
        first, *others = [sequence.stream for sequence in sequences]
        await first.wait(others)
        deltas: list[Delta] = []
        for sequence in sequences:
            if sequence.stream.has_news:
                event = sequence.stream.take()
                progress = event.progress
                if event.token_ids and not sequence.num_tokens:
                    progress = self._whole_prompt(sequence, event.num_cached_tokens)
                if progress is not None:
                    for on_progress in self._on_progress:
                        await on_progress(progress, sequence.index)
                deltas += self._advance(sequence, event)
        return deltas

    def _whole_prompt(self, sequence: OutputSequence, num_cached: int) -> PromptProgress | None:
        """The last progress before the first token; None of a further answer to a prompt, which shares the first's."""
        of_prompt, place = divmod(sequence.index, len(self._sequences) // len(self.prompts))
        if place or not sequence.tells_progress:
            return None
        num_tokens, admitted_at = len(self.prompts[of_prompt].token_ids), sequence.stream.admitted_at
        waited = 0.0 if admitted_at is None else 1000 * (time.perf_counter() - admitted_at)
        return PromptProgress(WaitStage.PROMPT, 0, 0.0, num_tokens, num_cached, num_tokens, waited)

    def _open_sequences(self) -> list[OutputSequence]:
        return [sequence for sequence in self._sequences if sequence.finish_reason is None]

    def _advance(self, sequence: OutputSequence, event: TokenEvent) -> list[Delta]:
        if event.finish_reason is FinishReason.ERROR:
            error = DeadEnd if event.is_dead_end else EngineError
            raise error(event.error or "the engine failed on this request")
        num_before = sequence.num_tokens
        deltas = sequence.advance(event)
        num_new, has_ended = sequence.num_tokens - num_before, sequence.finish_reason is not None
        if num_new or has_ended:
            now = time.perf_counter()
            if num_new and self.time_to_first_token is None:
                self.time_to_first_token = now - self._submitted_at
            if num_new and sequence.first_token_at is None:
                sequence.first_token_at = now
            for on_tokens in self._on_tokens:
                on_tokens(sequence, event.token_ids[:num_new], deltas, now)
            if num_new:
                sequence.last_token_at = now
            if has_ended:
                self._num_open -= 1
                if self._num_open == 0:
                    self._ended_at = now
        return deltas

    def _advance_tokens(self, sequence: OutputSequence, token_ids: Sequence[int]) -> list[Delta]:
        """`_advance` for an event that has tokens and nothing else, behind the first tokens of the sequence."""
        if len(token_ids) > sequence.max_plain_tokens:
            return self._advance(sequence, TokenEvent(list(token_ids), None, sequence.num_cached_tokens))
        delta = sequence.advance_tokens(token_ids)
        deltas = [] if delta is None else [delta]
        now = time.perf_counter()
        for on_tokens in self._on_tokens:
            on_tokens(sequence, token_ids, deltas, now)
        sequence.last_token_at = now
        return deltas
