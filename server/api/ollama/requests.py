"""The request bodies of /api/chat, /api/generate and /api/embed, and the completions that they ask for.

The form is that of Ollama's documentation (github.com/ollama/ollama, docs/api.md).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from sampling.host.params import MAX_LOGPROBS
from server.api.openai.chat_request import MAX_MESSAGES
from server.generation.roles import Role
from server.protocol.base_models import LenientModel, RequestBody, UnknownFields, bounded, is_whole
from server.protocol.errors import FieldError, UnsupportedField, invalid_value, shorten
from server.protocol.foreign_parameters import Unsupported
from server.protocol.json_limits import is_deeper
from server.protocol.tools import MAX_CALLS, MAX_DEPTH, MAX_TOOLS

MAX_IMAGES = 64  # of one message
MAX_INPUTS = 256  # texts of one /api/embed request
LATEST = ":latest"  # the tag that Ollama's clients add to a name

# Options of `options` by the parameter that they set. Those that speak of the machine are the operator's.
_PARAMETERS = {
    "frequency_penalty": "frequency_penalty",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "repeat_penalty": "repetition_penalty",
    "seed": "seed",
    "stop": "stop",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "typical_p": "typical_p",
}
_OF_THE_MACHINE = frozenset(
    {
        "f16_kv", "low_vram", "main_gpu", "num_batch", "num_ctx", "num_gpu", "num_gqa", "num_keep", "num_thread",
        "numa", "rope_frequency_base", "rope_frequency_scale", "use_mlock", "use_mmap", "vocab_only",
    }
)  # fmt: skip
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(h|ms|m|us|µs|ns|s)")
_DURATION = re.compile(rf"[-+]?(?:{_DURATION_PART.pattern})+")
_MAX_DURATION_CHARS = 64
MAX_KEEP_ALIVE_S = 366 * 24 * 3600  # longer ones are as long as this
_UNSUPPORTED: Unsupported = {"mirostat": (0,), "tfs_z": (1, 1.0)}
_UNUSED = {"mirostat_eta", "mirostat_tau"}  # they say nothing where mirostat is off
_NUM_PREDICT = "num_predict"
_OPTIONS = frozenset({*_PARAMETERS, *_OF_THE_MACHINE, *_UNUSED, _NUM_PREDICT})


def _as_options(value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f'options is {shorten(value)}; it must be an object like {{"temperature": 0.5}}')
    return value


def _as_object(value: Any) -> Any:
    """The arguments of a call, which OpenAI's clients send as a text."""
    if value is None:
        return {}
    if isinstance(value, str):
        try:
            return orjson.loads(value or "{}")
        except orjson.JSONDecodeError as error:
            raise ValueError(f"arguments are {shorten(value)}; they must be an object") from error
    return value


def _as_text(value: Any) -> Any:
    return "" if value is None else value


def _as_arguments(value: dict[str, Any]) -> dict[str, Any]:
    if is_deeper(value, MAX_DEPTH):
        raise ValueError(f"arguments are nested too deeply: deeper than {MAX_DEPTH} levels, the limit")
    return value


def _as_seconds(value: Any) -> Any:
    """A duration in seconds, given as a number or as a text like "1h30m"; one below 0 is without end."""
    if value is None:
        return None
    refusal = ValueError(
        f'keep_alive is {shorten(value)}; it must be a number of seconds or a text like "5m" or "1h30m"'
    )
    if isinstance(value, str):
        text = value[:_MAX_DURATION_CHARS]
        is_number = text.removeprefix("-").isdecimal() and text.isascii()
        if text != value or not (is_number or _DURATION.fullmatch(text)):
            raise refusal
        if is_number:
            value = int(text)
        else:
            sign = -1 if text.startswith("-") else 1
            value = sign * sum(float(number) * _UNITS[unit] for number, unit in _DURATION_PART.findall(text))
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise refusal
    return float(max(-1, min(value, MAX_KEEP_ALIVE_S)))


class OllamaFunctionCall(LenientModel):
    """A call in a message of the history."""

    name: str
    arguments: Annotated[
        dict[str, Any],
        AfterValidator(_as_arguments),
        BeforeValidator(_as_object, json_schema_input_type=dict[str, Any]),
    ] = Field(default_factory=dict)


class OllamaToolCall(LenientModel):
    id: str | None = None
    function: OllamaFunctionCall


Images: TypeAlias = Annotated[list[str], Field(fail_fast=True), bounded("images", MAX_IMAGES)]


def with_images(text: str, images: Sequence[str], path: str) -> str | list[dict[str, Any]]:
    """A text with the pictures before it as the content of OpenAI's message; raises ApiError for a wrong picture."""
    if not images:
        return text
    parts: list[dict[str, Any]] = []
    for place, image in enumerate(images):
        if not image:
            raise invalid_value(f"{path}[{place}] is empty; it must be a picture in base64", f"{path}[{place}]")
        url = image if image.startswith("data:") else f"data:;base64,{image}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return [*parts, {"type": "text", "text": text}]


class OllamaMessage(LenientModel):
    """One message of a conversation."""

    role: Role
    content: Annotated[str, BeforeValidator(_as_text, json_schema_input_type=str)] = ""
    thinking: str | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Annotated[list[OllamaToolCall], Field(fail_fast=True), bounded("tool_calls", MAX_CALLS)] | None = None
    images: Images | None = None

    def to_openai(self, index: int) -> dict[str, Any]:
        content = with_images(self.content, self.images or (), f"messages[{index}].images")
        message: dict[str, Any] = {"role": self.role, "content": content}
        if self.thinking:
            message["reasoning_content"] = self.thinking
        if self.tool_name:
            message["name"] = self.tool_name
        if self.tool_call_id:
            message["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id or f"call_{index}_{number}",
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": orjson.dumps(call.function.arguments).decode(),
                    },
                }
                for number, call in enumerate(self.tool_calls)
            ]
        return message


class OllamaRequest(RequestBody):
    """The fields of every Ollama request to a model."""

    model: str
    # Seconds or "5m", for administrators; otherwise the operator's --sleep-idle-seconds decides.
    keep_alive: Annotated[float, BeforeValidator(_as_seconds, json_schema_input_type=str | int | float)] | None = None
    options: Annotated[dict[str, Any], BeforeValidator(_as_options, json_schema_input_type=dict[str, Any])] | None = (
        None
    )

    @property
    def model_name(self) -> str:
        """The name without the tag that clients add."""
        return self.model.removesuffix(LATEST)

    @property
    def unloads(self) -> bool:
        """Whether `keep_alive` says that the model leaves memory at once."""
        return self.keep_alive == 0


class GeneratingRequest(OllamaRequest):
    """The fields that /api/chat and /api/generate share. null means the default."""

    stream: bool | None = None  # true by default
    resumable: bool | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None  # alternatives; only with logprobs

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> GeneratingRequest:
        if self.top_logprobs and not self.logprobs:
            raise invalid_value(
                f"top_logprobs is {self.top_logprobs} and logprobs is not true; it is only allowed with logprobs",
                "top_logprobs",
            )
        return self

    @property
    def is_streamed(self) -> bool:
        return self.stream is not False

    def to_openai(self, unknown: UnknownFields) -> dict[str, Any]:
        """The fields of OpenAI's body that both routes have.

        Raises:
            ApiError: an option is unknown and most likely a typo, or not supported.
        """
        body: dict[str, Any] = {"model": self.model_name, "stream": self.is_streamed, "resumable": self.resumable}
        options = {name: value for name, value in (self.options or {}).items() if value is not None}
        try:
            body |= _parameters(unknown.drop_from(options, _OPTIONS, _UNSUPPORTED, "options."))
        except FieldError as error:
            raise error.at(f"options.{error.name}") from None
        match self.format:
            case "json":
                body["response_format"] = {"type": "json_object"}
            case dict() as schema:
                body["response_format"] = {"type": "json_schema", "json_schema": {"name": "format", "schema": schema}}
        return body

    @property
    def of_chat(self) -> dict[str, Any]:
        """The fields that chats alone have."""
        return self._thinking | {"logprobs": self.logprobs, "top_logprobs": self.top_logprobs}

    @property
    def _thinking(self) -> dict[str, Any]:
        """The fields of a chat that turn the model's thinking on or off."""
        match self.think:
            case str() as effort:
                return {"reasoning_effort": effort}
            case True:
                return {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}}
            case False:
                return {"reasoning_effort": "none"}
        return {}


def _parameters(options: Mapping[str, Any]) -> dict[str, Any]:
    parameters = {_PARAMETERS[name]: value for name, value in options.items() if name in _PARAMETERS}
    length = options.get(_NUM_PREDICT)
    if isinstance(length, float) and is_whole(length):
        length = int(length)
    if length is not None and (isinstance(length, bool) or not isinstance(length, int)):
        raise UnsupportedField(_NUM_PREDICT, length)
    if length is not None and length > 0:  # otherwise until the answer or the context ends
        parameters["max_tokens"] = length
    return parameters


class ChatRequest(GeneratingRequest):
    """Ollama's request for the next message of a conversation."""

    messages: Annotated[list[OllamaMessage], Field(fail_fast=True), bounded("messages", MAX_MESSAGES)] = Field(
        default_factory=list
    )
    tools: Annotated[list[Any], bounded("tools", MAX_TOOLS)] | None = None

    def to_openai(self, unknown: UnknownFields) -> dict[str, Any]:
        body = super().to_openai(unknown) | self.of_chat
        body["messages"] = [message.to_openai(index) for index, message in enumerate(self.messages)]
        if self.tools:
            body["tools"] = self.tools
        return body


class GenerateRequest(GeneratingRequest):
    """Ollama's request for an answer to one prompt."""

    UNSUPPORTED: ClassVar[Unsupported] = {
        "context": ([],),  # tokens of an earlier answer; /api/chat takes a conversation
        "template": ("",),
    }

    prompt: str = ""
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None
    images: Images | None = None

    @property
    def is_chat(self) -> bool:
        """Whether the model's chat template makes the prompt; otherwise the text is the prompt."""
        return not self.raw and not self.suffix

    def to_openai(self, unknown: UnknownFields) -> dict[str, Any]:
        body = super().to_openai(unknown)
        if not self.is_chat:
            if self.images:
                raise invalid_value("images are given with raw or suffix; only a chat has pictures", "images")
            body["logprobs"] = (self.top_logprobs or 0) if self.logprobs else None
            return body | {"prompt": self.prompt} | ({"suffix": self.suffix} if self.suffix else {})
        system = [{"role": "system", "content": self.system}] if self.system else []
        content = with_images(self.prompt, self.images or (), "images")
        return body | self.of_chat | {"messages": [*system, {"role": "user", "content": content}]}


def _as_texts(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class EmbedRequest(OllamaRequest):
    """Ollama's request for the embeddings of some texts."""

    input: Annotated[
        list[str],
        Field(min_length=1, fail_fast=True),
        BeforeValidator(_as_texts, json_schema_input_type=str | list[str]),
        bounded("input", MAX_INPUTS),
    ]
    truncate: bool | None = None  # true by default
    dimensions: int | None = None


class EmbedOneRequest(OllamaRequest):
    """The older form for one text."""

    prompt: str


class NamedModel(RequestBody):
    """A request about one model; `name` is the older word for `model`."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None
    stream: bool | None = None
    insecure: bool | None = None

    @property
    def model_name(self) -> str:
        name = self.model or self.name
        if not name:
            raise invalid_value("model is missing; it must be the name of a model", "model")
        return name.removesuffix(LATEST)
