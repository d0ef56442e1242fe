"""The bodies of the generating routes, checked before anything else sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sampling.params import MAX_SEED, SamplingParams
from server import unsupported
from server.errors import ApiError, shorten

MAX_CHOICES = 16  # n
MAX_STOPS = 16
MAX_STOP_LENGTH = 256  # characters
MAX_PROMPTS = 64
MAX_SALT_LENGTH = 256  # characters
DEFAULT_COMPLETION_TOKENS = 16
DEFAULT_TEMPERATURE = 1.0
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
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError(f"stop is {shorten(value)}; it must be a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise ValueError(f"stop has {len(stops)} entries; at most {MAX_STOPS} are allowed")
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_LENGTH:
            raise ValueError(f"stop has an entry of {len(stop)} characters; each must have from 1 to {MAX_STOP_LENGTH}")
    return stops


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


class StrictModel(BaseModel):
    """Unknown names are refused; "5" is not 5 and true is not 1."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


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


class GenerationRequest(StrictModel):
    """What /v1/completions, /v1/chat/completions and /v1/stream have in common. null means the default."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: Annotated[list[str], BeforeValidator(_as_stops)] = []
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
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

    @property
    def num_choices(self) -> int:
        """Answers wanted per prompt."""
        return 1 if self.n is None else self.n

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

    def sampling_params(self, max_tokens: int, choice: int) -> SamplingParams:
        """The engine's parameters for the `choice`-th answer, which has a seed of its own.

        Raises:
            InvalidParameter: a value is outside its limits.
        """
        params = SamplingParams(
            max_tokens=max_tokens,
            temperature=DEFAULT_TEMPERATURE if self.temperature is None else self.temperature,
            top_k=0 if self.top_k is None else self.top_k,
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=0.0 if self.min_p is None else self.min_p,
            seed=self.seed,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=self.ignore_eos is True,
        )
        if params.seed is None or choice == 0:
            return params
        return _with_seed(params, params.seed + choice)


class CompletionRequest(GenerationRequest):
    prompt: Annotated[list[Prompt], BeforeValidator(_as_prompts)]

    @classmethod
    def parse(cls, body: Any) -> CompletionRequest:
        """Checks a decoded JSON body.

        Raises:
            ApiError, ValidationError: it is not a valid request.
        """
        return cls.model_validate(_strip(body, unsupported.COMPLETIONS))

    def limit_tokens(self, num_prompt_tokens: int, max_model_len: int) -> int:
        if self.max_tokens is not None:
            return self.max_tokens
        return min(DEFAULT_COMPLETION_TOKENS, max_model_len - num_prompt_tokens)


class ChatCompletionRequest(GenerationRequest):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: int | None = None

    @classmethod
    def parse(cls, body: Any) -> ChatCompletionRequest:
        """Checks a decoded JSON body.

        Raises:
            ApiError, ValidationError: it is not a valid request.
        """
        return cls.model_validate(_strip(body, unsupported.CHAT))

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
