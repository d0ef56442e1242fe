"""What the offline API gives for one prompt."""

from __future__ import annotations

from dataclasses import dataclass

from engine.interface.types import FinishReason, TokenLogprobs
from server.generation.answers import Answer, Usage


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
