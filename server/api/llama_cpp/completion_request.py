"""The request bodies of /completion and /infill, with llama.cpp's names (its tools/server/README.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field

from server.api.openai.completion_request import CompletionRequest
from server.protocol.base_models import LenientModel, bounded
from server.protocol.errors import UnsupportedField, invalid_value, shorten

MAX_EXTRA = 256  # files of /infill's input_extra

_OTHER_NAMES: Mapping[str, str] = {
    "n_predict": "max_tokens",
    "n_probs": "logprobs",
    "repeat_penalty": "repetition_penalty",
}
# What speaks of the server's slots and caches, or says nothing where `mirostat` and `dynatemp_range` are off. None of
# it changes an answer.
_WITHOUT_MEANING = frozenset(
    {
        "cache_prompt", "dynatemp_exponent", "id_slot", "mirostat_eta", "mirostat_tau", "n_cache_reuse", "n_discard",
        "n_keep", "timings_per_token",
    }
)  # fmt: skip
_IGNORED = ("samplers", "post_sampling_probs", "input_extra")  # with a warning: they would change the answer
_ONLY_THESE: Mapping[str, tuple[Any, ...]] = {
    "dynatemp_range": (0, 0.0),
    "lora": ([],),
    "mirostat": (0,),
    "n_cmpl": (1,),
    "response_fields": ([],),
}


def _biases(value: Any) -> Any:
    """llama.cpp's list of pairs as OpenAI's object; false forbids a token."""
    if not isinstance(value, list):
        return value
    biases = {}
    for pair in value:
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], int)):
            raise invalid_value(
                f"logit_bias has the entry {shorten(pair)}; it must be a token id and a number, or false", "logit_bias"
            )
        biases[str(pair[0])] = -100 if pair[1] is False else pair[1]
    return biases


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
    if "logit_bias" in fields:
        fields["logit_bias"] = _biases(fields["logit_bias"])
    schema, grammar = fields.pop("json_schema", None), fields.pop("grammar", None)
    if schema is not None and schema != {}:
        fields["structured_outputs"] = {"json": schema}
    elif grammar:
        fields["structured_outputs"] = {"grammar": grammar}
    return fields


class LlamaCompletionRequest(CompletionRequest):
    """llama.cpp's completion request. Parameters that it shares with OpenAI's have the same meaning."""

    n_predict: int | None = None  # without limit by default
    n_probs: int | None = None
    repeat_penalty: float | None = None
    json_schema: Any = None
    grammar: str | None = None  # in GBNF or Lark
    samplers: Any = None  # their order is the server's
    return_tokens: bool | None = None
    post_sampling_probs: bool | None = None

    @classmethod
    def parse(cls, body: Any) -> Self:
        request = super().parse(to_openai(body))
        if isinstance(body, dict):
            request._ignored = (*request._ignored, *(name for name in _IGNORED if body.get(name)))
        return request


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
