"""Generates for many prompts at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.interface.types import FinishReason, TokenLogprobs
from server.generation.answers import Answer, Usage
from server.generation.generation import Generation
from server.generation.generation_request import GenerationRequest
from server.generation.output_sequence import Delta
from server.generation.prompts import PreparedPrompt
from server.structured_output.output_grammar import OutputGrammar


class Job(NamedTuple):
    """One checked request for one prompt."""

    request: GenerationRequest
    prompt: PreparedPrompt
    grammar: OutputGrammar | None = None  # what each answer has to match


class BatchProgress(NamedTuple):
    """The progress of a batch."""

    num_finished: int  # prompts
    num_prompts: int
    num_tokens: int  # generated so far, those of unfinished prompts included
    seconds: float  # since the first submission

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds if self.seconds > 0 else 0.0


class Batch:
    """Submits its jobs in order, as fast as there is room in the engine's queue, and reads them all concurrently."""

    def __init__(self, jobs: Sequence[Job], submit: Callable[[Job], Awaitable[Generation]]) -> None:
        self._jobs = jobs
        self._submit = submit
        self._open: set[Generation] = set()
        self._num_finished = 0
        self._num_tokens = 0
        self._started_at = time.perf_counter()

    @property
    def is_finished(self) -> bool:
        return self._num_finished == len(self._jobs)

    @property
    def progress(self) -> BatchProgress:
        """The progress at this moment; may be read in any thread."""
        seconds = time.perf_counter() - self._started_at
        return BatchProgress(self._num_finished, len(self._jobs), self._num_tokens, seconds)

    async def run(self) -> list[Output]:
        """The jobs' outputs, in their order. If one fails, all that run are aborted and its error is raised."""
        try:
            async with asyncio.TaskGroup() as group:
                readers = []
                for job in self._jobs:
                    generation = await self._submit(job)
                    self._open.add(generation)
                    readers.append(group.create_task(self._read(job, generation)))
            return [reader.result() for reader in readers]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the first failure has cancelled all the others
        finally:
            # Also the generations whose reader was cancelled before its first turn.
            for generation in self._open:
                await generation.aclose()

    async def _read(self, job: Job, generation: Generation) -> Output:
        answers = await generation.collect(self._count)
        self._open.discard(generation)
        self._num_finished += 1
        return Output(job.prompt.token_ids, tuple(answers), generation.usage)

    def _count(self, deltas: Sequence[Delta]) -> None:
        self._num_tokens += sum(len(delta.token_ids) for delta in deltas)


@dataclass(frozen=True, slots=True)
class Output:
    """The answers to one prompt. `text`, `token_ids`, `logprobs` and `finish_reason` are the first answer's."""

    prompt_token_ids: list[int]
    answers: tuple[Answer, ...]  # n of them; with best_of, the best first
    usage: Usage  # of all answers together; the prompt counts once

    @property
    def text(self) -> str:
        return self.answers[0].text

    @property
    def token_ids(self) -> list[int]:
        """The generated tokens, with the token that ended the answer."""
        return self.answers[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.answers[0].finish_reason

    @property
    def logprobs(self) -> list[TokenLogprobs] | None:
        """The logprobs of each of `token_ids`; None where not asked for."""
        return self.answers[0].logprobs

    @property
    def prompt_logprobs(self) -> list[TokenLogprobs | None] | None:
        """The logprobs of each of `prompt_token_ids`, the first being None; None where not asked for."""
        return self.answers[0].prompt_logprobs

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that came from the prefix cache."""
        return self.usage.num_cached_tokens
