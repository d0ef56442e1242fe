"""Many prompts on their way through the engine at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from server.generation.generation import Generation
from server.generation.generation_request import GenerationRequest
from server.generation.output_sequence import Delta
from server.generation.prompts import PreparedPrompt
from server.offline.output import Output
from server.structured_output.answer_rules import AnswerRules


class Job(NamedTuple):
    """One checked request for one prompt."""

    request: GenerationRequest
    prompt: PreparedPrompt
    grammar: AnswerRules | None = None  # what each answer has to match


class BatchProgress(NamedTuple):
    """How far a batch is."""

    num_finished: int  # prompts
    num_prompts: int
    num_tokens: int  # generated so far, those of unfinished prompts included
    seconds: float  # since the first submission

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds if self.seconds > 0 else 0.0


class Batch:
    """Submits its jobs in order, as fast as there is room, and reads them all at the same time.

    What is in flight is bounded by the engine's own limits: its slots and its queue.

    Args:
        submit: queues one job, waiting for room where there is none.
    """

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
        """How far the batch is at this moment; may be read in any thread."""
        seconds = time.perf_counter() - self._started_at
        return BatchProgress(self._num_finished, len(self._jobs), self._num_tokens, seconds)

    async def run(self) -> list[Output]:
        """The jobs' outputs, in their order. If it ends in any other way, all that runs is aborted.

        Raises:
            EngineError: the engine failed on one of them.
        """
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
