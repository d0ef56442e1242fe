"""The request bodies of /api/chat, /api/generate and /api/embed, and the completions that they ask for.

The form is that of Ollama's documentation (github.com/ollama/ollama, docs/api.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import AfterValidator, BeforeValidator, Field

from server.api.openai.chat_request import MAX_MESSAGES
from server.protocol.base_models import LenientModel, RequestBody, UnknownFields, bounded
from server.protocol.errors import FieldError, UnsupportedField, invalid_value, shorten
from server.protocol.foreign_parameters import Unsupported
from server.protocol.json_limits import is_deeper
from server.protocol.tools import MAX_CALLS, MAX_DEPTH, MAX_TOOLS

MAX_IMAGES = 64  # of one message; each is refused by name
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
_UNSUPPORTED: Unsupported = {"mirostat": (0,), "tfs_z": (1, 1.0)}
_UNUSED = {"mirostat_eta", "mirostat_tau"}  # they say nothing where mirostat is off
_NUM_PREDICT = "num_predict"
_OPTIONS = frozenset({*_PARAMETERS, *_OF_THE_MACHINE, *_UNUSED, _NUM_PREDICT})


def _as_options(value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f'options is {shorten(value)}; it must be an object like {{"temperature": 0.5}}')
    return value


def _as_arguments(value: dict[str, Any]) -> dict[str, Any]:
    if is_deeper(value, MAX_DEPTH):
        raise ValueError(f"arguments are nested too deeply: deeper than {MAX_DEPTH} levels, the limit")
    return value


class OllamaFunctionCall(LenientModel):
    """A call in a message of the history."""

    name: str
    arguments: Annotated[dict[str, Any], AfterValidator(_as_arguments)] = Field(default_factory=dict)


class OllamaToolCall(LenientModel):
    function: OllamaFunctionCall


class OllamaMessage(LenientModel):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    tool_name: str | None = None
    tool_calls: Annotated[list[OllamaToolCall], Field(fail_fast=True), bounded("tool_calls", MAX_CALLS)] | None = None
    images: Annotated[list[Any], bounded("images", MAX_IMAGES)] | None = None

    def to_openai(self, index: int) -> dict[str, Any]:
        if self.images:
            raise invalid_value(
                f"messages[{index}].images has {len(self.images)} pictures; this model reads text alone",
                f"messages[{index}].images",
            )
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.thinking:
            message["reasoning_content"] = self.thinking
        if self.tool_name:
            message["name"] = self.tool_name
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{index}_{number}",
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
    keep_alive: str | int | float | None = None  # seconds or "5m"; the operator's --sleep-idle-seconds decides
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
        return self.keep_alive in (0, "0", "0s", "0m", "0h")


class GeneratingRequest(OllamaRequest):
    """The fields that /api/chat and /api/generate share. null means the default."""

    UNSUPPORTED: ClassVar[Unsupported] = {"logprobs": (False,), "top_logprobs": (0,)}

    stream: bool | None = None  # true by default
    resumable: bool | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None

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
    def thinking(self) -> dict[str, Any]:
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
        body = super().to_openai(unknown) | self.thinking
        body["messages"] = [message.to_openai(index) for index, message in enumerate(self.messages)]
        if self.tools:
            body["tools"] = self.tools
        return body


class GenerateRequest(GeneratingRequest):
    """Ollama's request for an answer to one prompt."""

    UNSUPPORTED: ClassVar[Unsupported] = {
        **GeneratingRequest.UNSUPPORTED,
        "context": ([],),  # tokens of an earlier answer; /api/chat takes a conversation
        "images": ([],),
        "template": ("",),
    }

    prompt: str = ""
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None

    @property
    def is_chat(self) -> bool:
        """Whether the model's chat template makes the prompt; otherwise the text is the prompt."""
        return not self.raw and not self.suffix

    def to_openai(self, unknown: UnknownFields) -> dict[str, Any]:
        body = super().to_openai(unknown)
        if not self.is_chat:
            return body | {"prompt": self.prompt} | ({"suffix": self.suffix} if self.suffix else {})
        system = [{"role": "system", "content": self.system}] if self.system else []
        return body | self.thinking | {"messages": [*system, {"role": "user", "content": self.prompt}]}


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
