"""What a request asks of the model, whichever route it came by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sampling.host.params import MAX_SEED, InvalidParameter, SamplingParams
from server.generation.prompt_sources import PromptSource
from server.protocol.stream_fields import PLAIN, Streaming
from server.protocol.structured_outputs import GrammarRequest
from server.protocol.tools import StrictCalls


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """The one form in which requests enter the answering room; each route makes it of its own bodies.

    Its values have the right types. Their ranges, and everything that depends on the model, are
    checked by `prepare`.
    """

    prompts: Sequence[PromptSource]
    sampling: Mapping[str, Any]  # the fields of SamplingParams that the request gives, less those below
    prompt_parameter: str = "prompt"  # wire name of what the prompts come from
    model: str | None = None  # the name that the client gave
    max_tokens: int | None = None
    max_tokens_parameter: str = "max_tokens"  # wire name of what max_tokens comes from
    default_max_tokens: int | None = None  # where max_tokens is not given; None: as many as the model has room for
    num_choices: int = 1  # answers wanted to each prompt
    num_sampled: int = 1  # answers generated to each prompt, of which the best `num_choices` are wanted
    bad_words: Sequence[str] | None = None
    sequence_breakers: Sequence[str] | None = None  # of DRY
    stops: Sequence[str] = ()  # stop strings
    most_prompt_tokens: int | None = None  # of each prompt its last tokens; -1: as many as leave room for the answer
    echoes: bool = False  # whether the text of each answer begins with that of its prompt
    num_prompt_output_tokens: int = 0  # tokens at the end of each prompt that are the answer so far
    include_stop: bool = False  # whether the stop string itself is part of the text
    grammar: GrammarRequest | None = None  # what every answer must match
    strict_calls: StrictCalls | None = None  # what calls in the answers must follow, where there is no grammar
    thinking_budget: int | None = None  # tokens of each answer's reasoning, at most
    priority: int | None = None  # None: the lowest number that the tenant may ask for, at least 0
    cache_salt: str | None = None
    tenant: str = ""  # whose request it is; tenants have fair shares of the engine
    timeout: float | None = None  # seconds
    streaming: Streaming = PLAIN

    @property
    def only_echoes(self) -> bool:
        """Whether each answer is its prompt and nothing else, which is how log probabilities of a text are asked for.

        The engine draws one token all the same, because it computes a prompt only where something follows; nobody is
        told of that token.
        """
        return self.echoes and self.max_tokens == 0 and self.num_prompt_output_tokens == 0

    def limit_tokens(self, room: int) -> int:
        """The most tokens to generate where the model has room for `room` of them after the prompt.

        Raises:
            InvalidParameter: the request asks for fewer than one, and is not content with its prompts.
        """
        if self.only_echoes:
            return 1
        if self.max_tokens is None:
            return room if self.default_max_tokens is None else min(self.default_max_tokens, room)
        if self.max_tokens < 1:
            name = self.max_tokens_parameter
            raise InvalidParameter(name, f"{name} is {self.max_tokens}; it must be at least 1")
        return self.max_tokens

    def sampling_params(self, max_tokens: int, base: SamplingParams) -> SamplingParams:
        """The engine's parameters, less what a tokenizer makes of text.

        Args:
            base: what holds where the request says nothing.

        Raises:
            InvalidParameter: a value is outside its limits.
        """
        params = replace(base, max_tokens=max_tokens, **self.sampling)
        if self.num_sampled > self.num_choices and params.logprobs is None:
            return replace(params, logprobs=0)  # the best are chosen by it
        return params

    def params_of_answers(self, params: SamplingParams) -> tuple[SamplingParams, ...]:
        """`params` for each answer to a prompt. Where there is a seed, each answer has its own, ascending from it."""
        if params.seed is None:
            return (params,) * self.num_sampled
        return tuple(params.with_seed(_wrapped(params.seed + answer)) for answer in range(self.num_sampled))


def _wrapped(seed: int) -> int:
    """A seed in 64 bits, like the engine's own."""
    return (seed + MAX_SEED + 1) % (2 * (MAX_SEED + 1)) - MAX_SEED - 1
