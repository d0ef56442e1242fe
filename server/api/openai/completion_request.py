"""The request body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, PlainValidator, model_validator

from sampling.host.params import MAX_LOGPROBS
from server.protocol.errors import invalid_value, shorten
from server.protocol.foreign_parameters import COMPLETIONS
from server.protocol.generation_fields import GenerationFields

MAX_PROMPTS = 64
MAX_PROMPT_TOKENS = 1 << 19  # of one list of token ids; a model may have room for fewer

Prompt: TypeAlias = str | list[int]
AnyPrompts: TypeAlias = str | list[str] | list[int] | list[list[int]]  # the four shapes


def _is_token_ids(value: list[Any]) -> bool:
    return all(type(item) is int for item in value)


def as_prompts(value: Any, name: str = "prompt", *, most: int = MAX_PROMPTS) -> list[Prompt]:
    """The four shapes of `prompt` as a list of texts or of token id lists; raises ValueError, also beyond `most`."""
    shapes = "it must be a string, a list of token ids, or a list of either"
    if isinstance(value, str):
        prompts: list[Any] = [value]
    elif not isinstance(value, list):
        raise ValueError(f"{name} is {shorten(value)}; {shapes}")
    elif not value:
        raise ValueError(f"{name} is empty; it must have at least one token")
    else:
        prompts = [value] if _is_token_ids(value) else value
    if len(prompts) > most:
        raise ValueError(f"{name} has {len(prompts)} prompts; at most {most} are allowed")
    for prompt in prompts:
        if not (isinstance(prompt, str) or (isinstance(prompt, list) and _is_token_ids(prompt))):
            raise ValueError(f"{name} has the entry {shorten(prompt)}; {shapes}")
        if not prompt:
            raise ValueError(f"{name} is empty; it must have at least one token")
        if isinstance(prompt, list) and len(prompt) > MAX_PROMPT_TOKENS:
            raise ValueError(f"{name} has {len(prompt)} token ids; at most {MAX_PROMPT_TOKENS} are allowed")
    return prompts


def _as_num_logprobs(value: Any) -> Any:
    """Rejects a boolean, which is what the chat route takes."""
    if isinstance(value, bool):
        raise ValueError(
            f"logprobs is {shorten(value)}; a completion wants the number of alternatives, from 0 to {MAX_LOGPROBS}"
        )
    return value


class CompletionRequest(GenerationFields):
    """OpenAI's completion request. `prompt` is always a list here, whichever of its four shapes the client sent."""

    UNSUPPORTED = COMPLETIONS

    prompt: Annotated[list[Prompt], PlainValidator(as_prompts, json_schema_input_type=AnyPrompts)]
    logprobs: Annotated[int, BeforeValidator(_as_num_logprobs, json_schema_input_type=int)] | None = None
    add_special_tokens: bool | None = None  # true by default
    echo: bool | None = None
    suffix: str | None = None
    verbose: bool | None = None  # llama.cpp's

    @model_validator(mode="after")
    def _a_gap_has_two_sides(self) -> CompletionRequest:
        for name in ("echo", "truncate_prompt_tokens"):
            if self.suffix and getattr(self, name):
                raise invalid_value(
                    f"suffix and {name} are both given; the prompt of a gap to fill can be neither repeated nor cut",
                    name,
                )
        return self

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs
