"""Fields that generating routes share, besides the sampling parameters: streams, chat templates, generations."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple, Self, TypeAlias

import orjson
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, PrivateAttr, model_validator

from server.protocol.base_models import LenientModel, RequestBody, StrictModel, bounded
from server.protocol.errors import invalid_value, shorten
from server.protocol.foreign_parameters import AT_MOST, NO_LIMIT, with_own_names
from server.protocol.json_limits import is_deeper
from server.protocol.sampling_fields import SamplingFields, as_strings
from server.protocol.structured_outputs import GrammarRequest, ResponseFormat, StructuredOutputs

_LENGTHS = ("max_tokens", "max_completion_tokens")
MAX_CHOICES = 16  # n and best_of
MAX_STOPS = 16
MAX_STOP_LENGTH = 256  # characters
MAX_SALT_LENGTH = 256  # characters
MAX_ADAPTERS = 64  # of lora
LARGEST_SCALE = 100.0
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"]
REQUEST_ID_PATTERN = r"^[A-Za-z0-9._:-]{1,128}$"

MAX_VARIABLES = 64
MAX_VARIABLE_BYTES = 64 << 10  # of all of them, as JSON
MAX_SWITCH_BYTES = 4 << 10  # of mm_processor_kwargs, as JSON
MAX_DOCUMENTS = 256
MAX_TEMPLATE_DEPTH = 16  # of lists and objects within each other
RESERVED = frozenset(
    {
        "add_generation_prompt", "bos_token", "chat_template", "continue_final_message", "documents", "eos_token",
        "messages", "tokenize", "tools",
    }
)  # fmt: skip


def _as_stops(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        value = [value]
    elif not isinstance(value, list):
        raise ValueError(f"stop is {shorten(value)}; it must be a string or a list of strings")
    return as_strings(value, "stop", most=MAX_STOPS, longest=MAX_STOP_LENGTH)


def _as_json_schema(value: Any) -> Any:
    if not isinstance(value, dict | bool | str | None):
        raise ValueError(f"json_schema is {shorten(value)}; it must be a JSON schema, or its text")
    return value


def _as_truncation(value: int) -> int:
    if value < -1 or value == 0:
        raise ValueError(f"truncate_prompt_tokens is {value}; it must be -1 or at least 1")
    return value


def _as_budget(value: int) -> int | None:
    return None if value == -1 else value


def parse_variables(value: Any) -> Any:
    """`chat_template_kwargs`; raises ValueError."""
    name = "chat_template_kwargs"
    value = {} if value == [] else value  # an object without entries, in PHP
    if not isinstance(value, dict):
        raise ValueError(f'{name} is {shorten(value)}; it must be an object like {{"enable_thinking": false}}')
    if len(value) > MAX_VARIABLES:
        raise ValueError(f"{name} has {len(value)} names; at most {MAX_VARIABLES} are allowed")
    for reserved in sorted(RESERVED.intersection(value)):
        raise ValueError(
            f"{name} has the name {reserved}, which is reserved: a parameter or the server gives its value"
        )
    _refuse_deep(value, name)
    num_bytes = len(orjson.dumps(value))
    if num_bytes > MAX_VARIABLE_BYTES:
        raise ValueError(f"{name} has {num_bytes} bytes as JSON; at most {MAX_VARIABLE_BYTES} are allowed")
    return value


def parse_switches(value: Any) -> Any:
    """`mm_processor_kwargs`; raises ValueError."""
    name = "mm_processor_kwargs"
    if not isinstance(value, dict):
        raise ValueError(f'{name} is {shorten(value)}; it must be an object like {{"max_pixels": 200704}}')
    _refuse_deep(value, name)
    try:
        num_bytes = len(orjson.dumps(value))
    except TypeError as error:  # of a program's own values, such as an integer of more than 64 bits
        raise ValueError(f"{name} cannot be written as JSON: {error}") from error
    if num_bytes > MAX_SWITCH_BYTES:
        raise ValueError(f"{name} has {num_bytes} bytes as JSON; at most {MAX_SWITCH_BYTES} are allowed")
    return value


def _as_documents(value: Any) -> Any:
    if not isinstance(value, list) or not all(isinstance(document, dict) for document in value):
        raise ValueError(f"documents is {shorten(value)}; it must be a list of objects")
    if len(value) > MAX_DOCUMENTS:
        raise ValueError(f"documents has {len(value)} entries; at most {MAX_DOCUMENTS} are allowed")
    _refuse_deep(value, "documents")
    return value


def _refuse_deep(value: Any, name: str) -> None:
    if is_deeper(value, MAX_TEMPLATE_DEPTH):
        raise ValueError(f"{name} is nested deeper than {MAX_TEMPLATE_DEPTH} levels, the limit")


ThinkingBudget: TypeAlias = Annotated[int, Field(ge=-1), AfterValidator(_as_budget)]  # tokens of an answer's reasoning


class StreamOptions(StrictModel):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # never done: it only makes chunks longer
    continuous_usage_stats: bool | None = None


MAX_INTERVAL = 1024  # tokens


class Streaming(NamedTuple):
    """The streaming options of a request, whichever route it came by."""

    interval: int = 1  # tokens that a delta has at least, but for the first and the last
    is_resumable: bool = False  # its events are numbered and buffered, and a client may reconnect for the rest
    tells_progress: bool = False  # events before the first token say how the request waits
    is_wanted: bool = False  # there is a stream at all; otherwise the answer comes as a whole


PLAIN = Streaming()


class StreamFields(BaseModel):
    """Streaming parameters that every generating route has. null means the default."""

    resumable: bool | None = None
    return_progress: bool | None = None
    stream_interval: Annotated[int, Field(ge=1, le=MAX_INTERVAL)] | None = None

    @model_validator(mode="after")
    def _some_need_stream(self) -> StreamFields:
        if getattr(self, "stream", None):
            return self
        if self.resumable:
            raise invalid_value("resumable is true and stream is not; only a stream can be resumed", "resumable")
        if self.return_progress:
            raise invalid_value(
                "return_progress is true and stream is not; only a stream can tell of progress", "return_progress"
            )
        return self

    @property
    def streaming(self) -> Streaming:
        is_wanted = bool(getattr(self, "stream", None))
        return Streaming(self.stream_interval or 1, self.resumable is True, self.return_progress is True, is_wanted)


class TemplateFields(StrictModel):
    """vLLM's names. null means the default."""

    add_generation_prompt: bool | None = None  # true, unless the last message is continued
    continue_final_message: bool | None = None
    chat_template_kwargs: (
        Annotated[dict[str, Any], BeforeValidator(parse_variables, json_schema_input_type=dict[str, Any])] | None
    ) = None
    documents: (
        Annotated[list[dict[str, Any]], BeforeValidator(_as_documents, json_schema_input_type=list[dict[str, Any]])]
        | None
    ) = None
    mm_processor_kwargs: (
        Annotated[dict[str, Any], BeforeValidator(parse_switches, json_schema_input_type=dict[str, Any])] | None
    ) = None

    @model_validator(mode="after")
    def _a_turn_begins_or_goes_on(self) -> TemplateFields:
        if self.add_generation_prompt and self.continue_final_message:
            raise invalid_value(
                "add_generation_prompt and continue_final_message are both true; a new turn begins, "
                "or the last one goes on",
                "continue_final_message",
            )
        return self

    @property
    def begins_turn(self) -> bool:
        """Whether the prompt ends with the beginning of an assistant's turn."""
        return not self.continue_final_message if self.add_generation_prompt is None else self.add_generation_prompt

    @property
    def switches(self) -> str:
        """`mm_processor_kwargs` as JSON; empty where there are none."""
        given = self.mm_processor_kwargs
        return orjson.dumps(given, option=orjson.OPT_SORT_KEYS).decode() if given else ""

    @property
    def template_variables(self) -> dict[str, Any]:
        return {**(self.chat_template_kwargs or {}), **({"documents": self.documents} if self.documents else {})}


def effort_variables(effort: str | None) -> dict[str, Any]:
    """The template's variables for a reasoning effort. For "none" some templates have a switch instead."""
    switches = {"enable_thinking": False, "thinking": False} if effort == "none" else {}
    return {} if effort is None else {"reasoning_effort": effort, **switches}


def _is_no_limit(value: Any) -> bool:
    return type(value) is int and value == NO_LIMIT


class AdapterScale(LenientModel):
    """An adapter by its number, as GET /lora-adapters lists them, and how much of it."""

    id: Annotated[int, Field(ge=0)]
    scale: Annotated[float, Field(ge=-LARGEST_SCALE, le=LARGEST_SCALE)]


class GenerationFields(RequestBody, SamplingFields, StreamFields):
    """The fields of completions, chat completions, Responses and the WebSocket's messages. null means the default."""

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
    json_schema: Annotated[Any, BeforeValidator(_as_json_schema)] = None  # llama.cpp's, as is the grammar
    grammar: str | None = None  # in GBNF or Lark
    regex: str | None = None  # SGLang's, as is ebnf
    ebnf: str | None = None  # as the grammar
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    truncate_prompt_tokens: Annotated[int, AfterValidator(_as_truncation)] | None = None
    truncation_side: Literal["left", "right"] | None = None  # left by default: the last tokens are kept
    num_prompt_output_tokens: Annotated[int, Field(ge=0)] | None = None
    include_metrics: bool | None = None
    timings_per_token: bool | None = None  # llama.cpp's
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_SALT_LENGTH)] | None = None
    lora: Annotated[list[AdapterScale], Field(fail_fast=True), bounded("lora", MAX_ADAPTERS)] | None = (
        None  # llama.cpp's
    )
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # seconds
    user: str | None = None
    request_id: Annotated[str, Field(pattern=REQUEST_ID_PATTERN)] | None = None
    _is_unlimited: bool = PrivateAttr(default=False)
    _is_at_most: bool = PrivateAttr(default=False)

    @classmethod
    def parse(cls, body: Any) -> Self:
        known = with_own_names(body)
        lengths = [name for name in _LENGTHS if name in cls.known_fields()] if isinstance(known, dict) else []
        unlimited = {name for name in lengths if _is_no_limit(known.get(name))}
        if unlimited:
            request = super().parse({name: value for name, value in known.items() if name not in unlimited})
            request._is_unlimited = True
        else:
            request = super().parse(known)
            request._is_at_most = isinstance(body, dict) and body.get(AT_MOST) is not None
        return request

    @property
    def is_unlimited(self) -> bool:
        """Whether the request says of itself that its answers may be as long as the model has room for."""
        return self._is_unlimited

    @property
    def is_at_most(self) -> bool:
        """Whether an answer for whose length the model has no room ends with the context, and is not refused."""
        return self._is_at_most

    @model_validator(mode="after")
    def _check_combinations(self) -> GenerationFields:
        if self.stream_options is not None and not self.stream:
            raise invalid_value(
                "stream_options is given and stream is not true; it is only allowed when streaming", "stream_options"
            )
        forms = [form.parameter for form in self._forms]
        if len(forms) > 1:
            raise invalid_value(f"{forms[0]} and {forms[1]} are both given; an answer can follow one of them", forms[1])
        if self.best_of is not None:
            self._check_best_of(self.best_of)
        return self

    def _check_best_of(self, best_of: int) -> None:
        if best_of < self.num_choices:
            raise invalid_value(f"best_of is {best_of}; it must be at least n, {self.num_choices}", "best_of")
        if self.stream and best_of > self.num_choices:
            raise invalid_value(
                f"best_of is {best_of} and n is {self.num_choices}; when streaming they must be equal, "
                "because which answers are best is known at the end",
                "best_of",
            )

    @property
    def num_choices(self) -> int:
        """The number of answers to each prompt."""
        return 1 if self.n is None else self.n

    @property
    def num_sampled(self) -> int:
        """The number of answers generated to each prompt, of which the best `num_choices` are returned."""
        return self.num_choices if self.best_of is None else self.best_of

    @property
    def is_verbose(self) -> bool:
        """Whether a whole answer has the prompt's text and its own text beside it."""
        return getattr(self, "verbose", None) is True

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives for each generated token; None: not even the token's own logprob."""
        raise NotImplementedError

    @property
    def grammar_request(self) -> GrammarRequest | None:
        """The grammar of every answer; None where the request has none."""
        return next(iter(self._forms), None)

    @property
    def _forms(self) -> list[GrammarRequest]:
        """The parameters that ask for a grammar, of which a request may have one."""
        forms: list[GrammarRequest] = []
        if self.response_format not in (None, ResponseFormat(type="text")):
            forms.append(GrammarRequest("response_format", self.response_format))
        if self.structured_outputs is not None:
            forms.append(GrammarRequest("structured_outputs", self.structured_outputs))
        if self.json_schema not in (None, {}):
            forms.append(GrammarRequest("json_schema", StructuredOutputs.model_validate({"json": self.json_schema})))
        if self.grammar:
            forms.append(GrammarRequest("grammar", StructuredOutputs.model_validate({"grammar": self.grammar})))
        if self.regex:
            forms.append(GrammarRequest("regex", StructuredOutputs.model_validate({"regex": self.regex})))
        if self.ebnf:
            forms.append(GrammarRequest("ebnf", StructuredOutputs.model_validate({"grammar": self.ebnf})))
        return forms

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage is True

    @property
    def wants_continuous_usage(self) -> bool:
        """Whether every chunk of a stream has the usage so far; only with `wants_usage`, as in vLLM."""
        return self.wants_usage and self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)
