"""What a generation comes to: whole answers, token counts and latencies."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import NamedTuple

from engine.interface.types import FinishReason, TokenLogprobs
from server.generation.output_sequence import Delta
from server.generation.prompts import PreparedPrompt

# From the most complete answer to the least complete one.
_SEVERITY = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.TIMEOUT, FinishReason.ABORT)


class Usage(NamedTuple):
    """Token counts of a generation, as the wire's `usage` has them."""

    num_prompt_tokens: int
    num_completion_tokens: int
    num_cached_tokens: int  # of the prompt tokens, those that came from the prefix cache
    num_image_tokens: int = 0  # of the prompt tokens, those of pictures


class Timings(NamedTuple):
    """Latencies of one answer in seconds, as its client sees them."""

    time_to_first_token: float  # since the submission
    queue_time: float  # between the submission and the first step
    generation_time: float  # between the queue and the last token
    mean_inter_token_latency: float | None  # None of a single token
    num_tokens: int

    @property
    def tokens_per_second(self) -> float:
        """Of the time outside the queue."""
        return self.num_tokens / self.generation_time


class GenerationStats(NamedTuple):
    """The figures of a generation when it ends."""

    usage: Usage
    finish_reasons: list[FinishReason | None]  # by sequence; None of one that was cut off
    time_to_first_token: float | None  # seconds
    timings: Timings | None  # None of several sequences
    duration: float  # seconds since the submission
    most_tokens: int  # of one sequence

    @property
    def finish_reason(self) -> FinishReason | None:
        return least_complete(self.finish_reasons)


@dataclass(frozen=True, slots=True)
class Answer:
    """The whole text and tokens of one output sequence."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    logprobs: list[TokenLogprobs] | None = None  # of each of the token ids, where the request wants them
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # of the prompt's tokens, None of the first
    matched_stop: str | int | None = None  # the stop string or the token that has ended it

    @property
    def cumulative_logprob(self) -> float | None:
        """The sum over all tokens; None where the request did not want logprobs."""
        return None if self.logprobs is None else sum(logprobs.logprob for logprobs in self.logprobs)

    @property
    def mean_logprob(self) -> float:
        """The average over all tokens. An answer without tokens is below all others."""
        total = self.cumulative_logprob
        return -math.inf if total is None or not self.token_ids else total / len(self.token_ids)


def least_complete(finish_reasons: Sequence[FinishReason | None]) -> FinishReason | None:
    """The reason that stands for several sequences; None while one of them runs."""
    reasons = [reason for reason in finish_reasons if reason is not None]
    return max(reasons, key=_SEVERITY.index) if len(reasons) == len(finish_reasons) else None


def join(index: int, deltas: Sequence[Delta], finish_reason: FinishReason) -> Answer:
    """The answer that all deltas of a sequence make together."""
    logprobs = [delta.logprobs for delta in deltas if delta.logprobs is not None]
    return Answer(
        index,
        "".join(delta.text for delta in deltas),
        [token_id for delta in deltas for token_id in delta.token_ids],
        finish_reason,
        list(chain.from_iterable(logprobs)) if logprobs else None,
        next((delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs is not None), None),
        deltas[-1].matched_stop if deltas else None,
    )


def choose_best(answers: Sequence[Answer], prompts: Sequence[PreparedPrompt]) -> list[Answer]:
    """As many answers to each prompt as are wanted, numbered anew; with `best_of`, of the highest mean logprobs."""
    chosen: list[Answer] = []
    rest = iter(answers)
    for prompt in prompts:
        of_prompt = list(islice(rest, len(prompt.params)))
        if prompt.num_wanted < len(of_prompt):
            of_prompt.sort(key=lambda answer: -answer.mean_logprob)
        chosen += of_prompt[: prompt.num_wanted]
    return [replace(answer, index=index) for index, answer in enumerate(chosen)]
