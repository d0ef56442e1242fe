"""What the bodies of all generating routes have in common, beside the sampler's parameters."""

from __future__ import annotations

from typing import Annotated, Any, Self, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from server.protocol.errors import ApiError, shorten
from server.protocol.sampling_fields import SamplingFields, as_strings
from server.protocol.stream_fields import StreamFields
from server.protocol.strict_model import StrictModel
from server.protocol.structured_outputs import GrammarWish, ResponseFormat, StructuredOutputs
from server.protocol.unknown_fields import Neutral, UnknownFields

MAX_CHOICES = 16  # n and best_of
MAX_STOPS = 16
MAX_STOP_LENGTH = 256  # characters
MAX_SALT_LENGTH = 256  # characters
REQUEST_ID_PATTERN = r"^[A-Za-z0-9._:-]{1,128}$"


def _as_stops(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        value = [value]
    elif not isinstance(value, list):
        raise ValueError(f"stop is {shorten(value)}; it must be a string or a list of strings")
    return as_strings(value, "stop", most=MAX_STOPS, longest=MAX_STOP_LENGTH)


def _as_truncation(value: int) -> int:
    if value < -1 or value == 0:
        raise ValueError(f"truncate_prompt_tokens is {value}; it must be -1 or at least 1")
    return value


def _as_budget(value: int) -> int | None:
    """Takes -1 for no limit, as vLLM does."""
    return None if value == -1 else value


ThinkingBudget: TypeAlias = Annotated[int, Field(ge=-1), AfterValidator(_as_budget)]  # tokens of an answer's reasoning


class StreamOptions(StrictModel):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationFields(SamplingFields, StreamFields):
    """What completions, chat completions and the WebSocket's generate messages share. null means the default."""

    model: str | None = None
    max_tokens: int | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: Annotated[list[str], BeforeValidator(_as_stops, json_schema_input_type=str | list[str] | None)] = Field(
        default_factory=list
    )
    include_stop_str_in_output: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    truncate_prompt_tokens: Annotated[int, AfterValidator(_as_truncation)] | None = None
    num_prompt_output_tokens: Annotated[int, Field(ge=0)] | None = None
    include_metrics: bool | None = None
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_SALT_LENGTH)] | None = None
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # seconds
    user: str | None = None
    request_id: Annotated[str, Field(pattern=REQUEST_ID_PATTERN)] | None = None

    _ignored: tuple[str, ...] = PrivateAttr(default=())

    @classmethod
    def without_strangers(cls, body: Any, neutral: Neutral) -> Self:
        """Checks a decoded JSON body in which there may be names that are no fields, as `UnknownFields` sorts them out.

        Raises:
            ApiError, FieldError, ValidationError: it is not a valid request.
        """
        strangers = UnknownFields()
        request = cls.model_validate(strangers.sort_out(body, cls.model_fields, neutral), context=strangers)
        request._ignored = tuple(strangers.ignored)
        return request

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names in the body that mean nothing to this server, by their paths."""
        return self._ignored

    @model_validator(mode="after")
    def _check_combinations(self) -> GenerationFields:
        if self.stream_options is not None and not self.stream:
            raise ApiError(
                "stream_options is given and stream is not true; it is only allowed when streaming",
                param="stream_options",
                code="invalid_value",
            )
        if self.structured_outputs is not None and self.response_format not in (None, ResponseFormat(type="text")):
            raise ApiError(
                "response_format and structured_outputs are both given; an answer can follow one of them",
                param="structured_outputs",
                code="invalid_value",
            )
        if self.best_of is not None:
            self._check_best_of(self.best_of)
        return self

    def _check_best_of(self, best_of: int) -> None:
        if best_of < self.num_choices:
            raise ApiError(
                f"best_of is {best_of}; it must be at least n, {self.num_choices}",
                param="best_of",
                code="invalid_value",
            )
        if self.stream and best_of > self.num_choices:
            raise ApiError(
                f"best_of is {best_of} and n is {self.num_choices}; when streaming they must be equal, "
                "because which answers are best is known at the end",
                param="best_of",
                code="invalid_value",
            )

    @property
    def num_choices(self) -> int:
        """Answers wanted to each prompt."""
        return 1 if self.n is None else self.n

    @property
    def num_sampled(self) -> int:
        """Answers generated to each prompt, of which the best `num_choices` are wanted."""
        return self.num_choices if self.best_of is None else self.best_of

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives wanted for each generated token; None: not even the token's own logprob."""
        raise NotImplementedError

    @property
    def grammar_wish(self) -> GrammarWish | None:
        """What every answer must match; None where the request names nothing."""
        if self.structured_outputs is not None:
            return GrammarWish("structured_outputs", self.structured_outputs)
        return None if self.response_format is None else GrammarWish("response_format", self.response_format)

    @property
    def wants_usage(self) -> bool:
        """Whether a stream is to end with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage is True

    @property
    def wants_continuous_usage(self) -> bool:
        """Whether every chunk of a stream is to tell the usage so far; only beside `wants_usage`, as in vLLM."""
        return self.wants_usage and self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)
