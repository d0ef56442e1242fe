"""The bodies of the generating routes, checked before anything else sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from sampling.host.params import MAX_LOGPROBS, MAX_SEED, InvalidParameter, SamplingParams
from server.wire import unsupported
from server.wire.errors import ApiError, shorten
from server.wire.sampling_fields import SamplingFields, as_strings
from server.wire.strict_model import StrictModel
from server.wire.structured_outputs import Grammar, ResponseFormat, StructuredOutputs

MAX_CHOICES = 16  # n and best_of
MAX_STOPS = 16
MAX_STOP_LENGTH = 256  # characters
MAX_PROMPTS = 64
MAX_SALT_LENGTH = 256  # characters
DEFAULT_COMPLETION_TOKENS = 16
REQUEST_ID_PATTERN = r"^[A-Za-z0-9._:-]{1,128}$"

Prompt: TypeAlias = str | list[int]


def _is_token_ids(value: list[Any]) -> bool:
    return all(type(item) is int for item in value)


def _as_prompts(value: Any) -> list[Prompt]:
    """The four shapes of `prompt` as one: a list of texts or of token id lists."""
    if isinstance(value, str):
        prompts: list[Any] = [value]
    elif not isinstance(value, list):
        raise ValueError(f"prompt is {shorten(value)}; it must be a string, a list of token ids, or a list of either")
    elif not value:
        raise ValueError("prompt is empty; it must have at least one token")
    else:
        prompts = [value] if _is_token_ids(value) else value
    if len(prompts) > MAX_PROMPTS:
        raise ValueError(f"prompt has {len(prompts)} prompts; at most {MAX_PROMPTS} are allowed")
    for prompt in prompts:
        if not (isinstance(prompt, str) or (isinstance(prompt, list) and _is_token_ids(prompt))):
            raise ValueError(
                f"prompt has the entry {shorten(prompt)}; it must be a string, a list of token ids, or a list of either"
            )
        if not prompt:
            raise ValueError("prompt is empty; it must have at least one token")
    return prompts


def _as_stops(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        value = [value]
    elif not isinstance(value, list):
        raise ValueError(f"stop is {shorten(value)}; it must be a string or a list of strings")
    return as_strings(value, "stop", most=MAX_STOPS, longest=MAX_STOP_LENGTH)


def _as_num_logprobs(value: Any) -> Any:
    """A boolean is what the chat route takes."""
    if isinstance(value, bool):
        raise ValueError(
            f"logprobs is {shorten(value)}; a completion wants the number of alternatives, from 0 to {MAX_LOGPROBS}"
        )
    return value


def _as_logprobs_switch(value: Any) -> Any:
    """A number is what the completions route takes."""
    if not isinstance(value, bool):
        raise ValueError(
            f"logprobs is {shorten(value)}; it must be true or false, and top_logprobs is the number of alternatives"
        )
    return value


def _as_text(value: Any) -> str:
    """A message's content: a string, or parts of type text, joined by line ends."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError(f"content is {shorten(value)}; it must be a string or a list of text parts")
    texts = []
    for part in value:
        if not isinstance(part, dict) or "type" not in part:
            raise ValueError(f'content has the part {shorten(part)}; it must look like {{"type":"text","text":"…"}}')
        if part["type"] != "text":
            raise ValueError(
                f"content has a part of type {shorten(part['type'])}; only text is supported by this server"
            )
        if not isinstance(part.get("text"), str) or part.keys() > {"type", "text"}:
            raise ValueError(f'content has the part {shorten(part)}; it must look like {{"type":"text","text":"…"}}')
        texts.append(part["text"])
    return "\n".join(texts)


class StreamOptions(StrictModel):
    include_usage: bool | None = None


class Message(StrictModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(_as_text)]
    name: str | None = None

    def to_template(self) -> dict[str, str]:
        """As chat templates know it: developer is the newer name of system."""
        message = {"role": "system" if self.role == "developer" else self.role, "content": self.content}
        return message if self.name is None else {**message, "name": self.name}


class GenerationRequest(SamplingFields):
    """What /v1/completions, /v1/chat/completions and /v1/stream have in common. null means the default."""

    model: str | None = None
    max_tokens: int | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: Annotated[list[str], BeforeValidator(_as_stops)] = Field(default_factory=list)
    include_stop_str_in_output: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_SALT_LENGTH)] | None = None
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # seconds
    user: str | None = None
    request_id: Annotated[str, Field(pattern=REQUEST_ID_PATTERN)] | None = None

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise ApiError(
                "stream_options is given and stream is not true; it is only allowed when streaming",
                param="stream_options",
                code="invalid_value",
            )
        return self

    @model_validator(mode="after")
    def _one_grammar_at_most(self) -> GenerationRequest:
        if self.structured_outputs is not None and self.response_format not in (None, ResponseFormat(type="text")):
            raise ApiError(
                "response_format and structured_outputs are both given; an answer can follow one of them",
                param="structured_outputs",
                code="invalid_value",
            )
        return self

    @model_validator(mode="after")
    def _best_of_is_chosen_at_the_end(self) -> GenerationRequest:
        if self.num_sampled < self.num_choices:
            raise ApiError(
                f"best_of is {self.best_of}; it must be at least n, {self.num_choices}",
                param="best_of",
                code="invalid_value",
            )
        if self.stream and self.num_sampled > self.num_choices:
            raise ApiError(
                f"best_of is {self.best_of} and n is {self.num_choices}; when streaming they must be equal, "
                "because which answers are best is known at the end",
                param="best_of",
                code="invalid_value",
            )
        return self

    @property
    def num_choices(self) -> int:
        """Answers wanted per prompt."""
        return 1 if self.n is None else self.n

    @property
    def num_sampled(self) -> int:
        """Answers generated per prompt, of which the best `num_choices` are wanted."""
        return self.num_choices if self.best_of is None else self.best_of

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives wanted for each generated token; None: not even the token's own logprob."""
        raise NotImplementedError

    @property
    def grammar(self) -> Grammar | None:
        """What every answer must match.

        Raises:
            InvalidParameter: it is no JSON where it should be.
        """
        wish = self.structured_outputs or self.response_format
        try:
            return None if wish is None else wish.to_grammar()
        except ValueError as error:
            raise InvalidParameter(self.grammar_parameter, f"{self.grammar_parameter}: {error}") from error

    @property
    def grammar_parameter(self) -> str:
        """Wire name of the parameter that `grammar` comes from."""
        return "response_format" if self.structured_outputs is None else "structured_outputs"

    @property
    def wants_usage(self) -> bool:
        """Whether a stream is to end with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage is True

    @property
    def length_parameter(self) -> str:
        """Wire name of the parameter that `limit_tokens` comes from."""
        return "max_tokens"

    def limit_tokens(self, num_prompt_tokens: int, max_model_len: int) -> int:
        """The most tokens to generate after a prompt of `num_prompt_tokens` that fits the model."""
        raise NotImplementedError

    def sampling_params(self, max_tokens: int, base: SamplingParams | None = None) -> SamplingParams:
        """The engine's parameters, less what a tokenizer makes of text.

        Args:
            base: what holds where the request says nothing.

        Raises:
            InvalidParameter: a value is outside its limits.
        """
        given = self.given()
        if self.num_logprobs is not None:
            given["logprobs"] = self.num_logprobs
        params = replace(base or SamplingParams(), max_tokens=max_tokens, **given)
        if self.num_sampled > self.num_choices and params.logprobs is None:
            return replace(params, logprobs=0)  # the best are chosen by it
        return params

    def params_of_answers(self, params: SamplingParams) -> tuple[SamplingParams, ...]:
        """`params` for each answer that is generated; where there is a seed, each has its own."""
        if params.seed is None:
            return (params,) * self.num_sampled
        return tuple(_with_seed(params, params.seed + answer) for answer in range(self.num_sampled))


class CompletionRequest(GenerationRequest):
    prompt: Annotated[list[Prompt], BeforeValidator(_as_prompts)]
    logprobs: Annotated[int, BeforeValidator(_as_num_logprobs)] | None = None

    @classmethod
    def parse(cls, body: Any) -> CompletionRequest:
        """Checks a decoded JSON body.

        Raises:
            ApiError, ValidationError: it is not a valid request.
        """
        return cls.model_validate(_strip(body, unsupported.COMPLETIONS))

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    def limit_tokens(self, num_prompt_tokens: int, max_model_len: int) -> int:
        if self.max_tokens is not None:
            return self.max_tokens
        return min(DEFAULT_COMPLETION_TOKENS, max_model_len - num_prompt_tokens)


class ChatCompletionRequest(GenerationRequest):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: int | None = None
    parse_special: bool | None = None  # whether names of control tokens in messages become those tokens
    logprobs: Annotated[bool, BeforeValidator(_as_logprobs_switch)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @classmethod
    def parse(cls, body: Any) -> ChatCompletionRequest:
        """Checks a decoded JSON body.

        Raises:
            ApiError, ValidationError: it is not a valid request.
        """
        return cls.model_validate(_strip(body, unsupported.CHAT))

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> ChatCompletionRequest:
        if self.top_logprobs and not self.logprobs:
            raise ApiError(
                f"top_logprobs is {self.top_logprobs} and logprobs is not true; it is only allowed with logprobs",
                param="top_logprobs",
                code="invalid_value",
            )
        return self

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def length_parameter(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    def limit_tokens(self, num_prompt_tokens: int, max_model_len: int) -> int:
        if self.max_completion_tokens is not None:
            if self.max_completion_tokens < 1:
                raise ApiError(
                    f"max_completion_tokens is {self.max_completion_tokens}; it must be at least 1",
                    param="max_completion_tokens",
                    code="invalid_value",
                )
            return self.max_completion_tokens
        if self.max_tokens is not None:
            return self.max_tokens
        return max_model_len - num_prompt_tokens


def _strip(body: Any, neutral: Mapping[str, tuple[Any, ...]]) -> Any:
    return unsupported.strip_neutral(body, neutral) if isinstance(body, dict) else body


def _with_seed(params: SamplingParams, seed: int) -> SamplingParams:
    """`params` with another seed, wrapped into 64 bits like the engine's own."""
    return replace(params, seed=(seed + MAX_SEED + 1) % (2 * (MAX_SEED + 1)) - MAX_SEED - 1)
