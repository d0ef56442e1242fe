"""The request bodies of /completion and /infill, with llama.cpp's names (its tools/server/README.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import Field, PlainValidator, PrivateAttr

from server.api.llama_cpp.biases import Biases
from server.api.openai.completion_request import CompletionRequest
from server.api.openai.prompt_forms import AnyLlamaPrompts, as_sources
from server.generation.prompt_sources import PromptSource
from server.protocol.base_models import LenientModel, bounded
from server.protocol.errors import UnsupportedField

MAX_EXTRA = 256  # files of /infill's input_extra
MAX_FIELDS = 64  # of response_fields

_OTHER_NAMES: Mapping[str, str] = {
    "n_cmpl": "n",
    "n_predict": "max_tokens",
    "n_probs": "logprobs",
    "repeat_penalty": "repetition_penalty",
}
# What speaks of the server's slots and caches, or says nothing where `mirostat` and `dynatemp_range` are off. None of
# it changes an answer.
_WITHOUT_MEANING = frozenset(
    {
        "cache_prompt", "dynatemp_exponent", "id_slot", "mirostat_eta", "mirostat_tau", "n_cache_reuse", "n_discard",
        "n_keep",
    }
)  # fmt: skip
_IGNORED = ("samplers", "input_extra")  # with a warning: they would change the answer
_ONLY_THESE: Mapping[str, tuple[Any, ...]] = {
    "dynatemp_range": (0, 0.0),
    "mirostat": (0,),
}


def to_openai(body: Any) -> Any:
    """The decoded body with OpenAI's names, as far as there are any.

    Raises:
        ApiError, FieldError: a parameter has a value that this server does not support.
    """
    if not isinstance(body, dict):
        return body
    fields: dict[str, Any] = {}
    for name, value in body.items():
        assert isinstance(name, str)  # JSON has no others
        if value is None or name in _WITHOUT_MEANING:
            continue
        if name in _ONLY_THESE:
            if value not in _ONLY_THESE[name]:
                raise UnsupportedField(name, value).at(name)
            continue
        fields[_OTHER_NAMES.get(name, name)] = value
    if "max_tokens" in fields and fields["max_tokens"] in (-1, -2):  # until the answer or the context ends
        del fields["max_tokens"]
    if fields.get("logprobs") == 0:
        del fields["logprobs"]
    return fields


def _as_prompts(value: Any) -> list[PromptSource]:
    return as_sources(value, takes_pictures=True)


class LlamaCompletionRequest(CompletionRequest):
    """llama.cpp's completion request. Parameters that it shares with OpenAI's have the same meaning."""

    prompt: Annotated[Any, PlainValidator(_as_prompts, json_schema_input_type=AnyLlamaPrompts)]
    n_predict: int | None = None  # without limit by default; 0 only computes the prompt
    n_probs: int | None = None
    repeat_penalty: float | None = None
    samplers: Any = None  # their order is the server's
    return_tokens: bool | None = None
    response_fields: Annotated[list[str], Field(fail_fast=True), bounded("response_fields", MAX_FIELDS)] | None = None
    post_sampling_probs: bool | None = None  # of the distribution that tokens were drawn from
    _text_biases: Sequence[tuple[str, float]] = PrivateAttr(default=())
    _is_prompt_only: bool = PrivateAttr(default=False)

    @classmethod
    def parse(cls, body: Any) -> Self:
        fields = to_openai(body)
        text_biases: Sequence[tuple[str, float]] = ()
        if isinstance(fields, dict) and isinstance(fields.get("logit_bias"), list | dict):
            fields["logit_bias"], text_biases = Biases.of(fields["logit_bias"])
        only_prompt = isinstance(fields, dict) and fields.get("max_tokens") == 0 and type(fields["max_tokens"]) is int
        if only_prompt:
            fields["max_tokens"] = 1  # the engine computes a prompt only where a token follows
        request = super().parse(fields)
        request._text_biases, request._is_prompt_only = text_biases, only_prompt
        if isinstance(body, dict):
            request._ignored = (*request._ignored, *(name for name in _IGNORED if body.get(name)))
        return request

    @property
    def text_biases(self) -> Sequence[tuple[str, float]]:
        """The biases of `logit_bias` that name texts."""
        return self._text_biases

    @property
    def is_prompt_only(self) -> bool:
        """Whether the prompt is computed for the prefix cache, without an answer: editors warm it up so."""
        return self._is_prompt_only


class ExtraFile(LenientModel):
    """A piece of another file."""

    filename: str = ""
    text: str


class InfillRequest(LlamaCompletionRequest):
    """llama.cpp's request for the text between two texts."""

    prompt: Any = ""  # text behind the prefix that is already written
    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: Annotated[list[ExtraFile], bounded("input_extra", MAX_EXTRA)] = Field(default_factory=list)

    @property
    def context(self) -> str:
        """The pieces of other files, marked as llama.cpp marks them for models without tokens for files."""
        return "".join(f"\n\n--- snippet ---\n\n{extra.text}" for extra in self.input_extra)
