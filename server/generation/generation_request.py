"""A request for answers, independent of the route that it came by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.generation.prompt_sources import PromptSource
from server.protocol.generation_fields import PLAIN, Streaming
from server.protocol.structured_outputs import GrammarRequest
from server.protocol.tools import OfferedCalls, StrictCalls


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What every route makes of its bodies; values have the right types, and `prepare` checks everything else."""

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
    text_biases: Sequence[tuple[str, float]] = ()  # biases of the tokens of a text, beside `logit_bias`
    sequence_breakers: Sequence[str] | None = None  # of DRY
    stops: Sequence[str] = ()  # stop strings
    most_prompt_tokens: int | None = None  # of each prompt its last tokens; -1: as many as leave room for the answer
    keeps_first_tokens: bool = False  # whether these are its first tokens instead
    echoes: bool = False  # whether the text of each answer begins with that of its prompt
    num_prompt_output_tokens: int = 0  # tokens at the end of each prompt that are the answer so far
    include_stop: bool = False  # whether the stop string itself is part of the text
    grammar: GrammarRequest | None = None  # what every answer must match
    strict_calls: StrictCalls | None = None  # what calls in the answers must follow, where there is no grammar
    offered_calls: OfferedCalls | None = None  # calls that answers may have, where there is no grammar
    declares_tools: bool = False  # whether the model may write calls, even where the request allows none
    thinking_budget: int | None = None  # tokens of each answer's reasoning, at most
    adapters: Sequence[tuple[int, float]] = ()  # by their numbers, with scales, where `model` names none
    priority: int | None = None  # None: the lowest number that the tenant may ask for, at least 0
    cache_salt: str | None = None
    timeout: float | None = None  # seconds
    streaming: Streaming = PLAIN

    @property
    def has_rules(self) -> bool:
        """Whether the answers may have to follow a grammar."""
        wishes = (self.grammar, self.strict_calls, self.offered_calls, self.thinking_budget)
        return any(wish is not None for wish in wishes)

    @property
    def only_echoes(self) -> bool:
        """Whether each answer is its prompt and nothing else, for log probabilities of a text.

        The engine draws one token all the same, because it computes a prompt only where something follows.
        """
        return self.echoes and self.max_tokens == 0 and self.num_prompt_output_tokens == 0
