"""The sampling parameters as fields of request bodies."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, create_model

from sampling.host.params import (
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_STOP_TOKEN_IDS,
    NUMBERS,
    SamplingParams,
)
from server.protocol.base_models import StrictModel, bounded
from server.protocol.errors import shorten

MAX_ALLOWED_IDS = 1 << 19  # entries of allowed_token_ids; no vocabulary has as many
MAX_BREAKERS = 16  # dry_sequence_breakers
MAX_BREAKER_LENGTH = 32  # characters
MAX_BAD_WORD_LENGTH = 256  # characters
MAX_SHOWN_KEYS = 8  # wrong ones of logit_bias that an error names
DEFAULT_BREAKERS = ("\n", ":", '"', "*")

_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")


def as_strings(value: Any, name: str, *, most: int, longest: int) -> list[str]:
    """A list of strings within its limits; raises ValueError that names the limit."""
    if isinstance(value, list) and len(value) > most:
        raise ValueError(f"{name} has {len(value)} entries; at most {most} are allowed")
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{name} is {shorten(value)}; it must be a list of strings")
    for item in value:
        if not 1 <= len(item) <= longest:
            raise ValueError(f"{name} has an entry of {len(item)} characters; each must have from 1 to {longest}")
    return value


def _as_bad_words(value: Any) -> list[str]:
    return as_strings(value, "bad_words", most=MAX_BAD_WORDS, longest=MAX_BAD_WORD_LENGTH)


def _as_breakers(value: Any) -> list[str]:
    return as_strings(value, "dry_sequence_breakers", most=MAX_BREAKERS, longest=MAX_BREAKER_LENGTH)


def _as_biases(value: Any) -> list[tuple[int, float]]:
    """OpenAI's object of token ids, written as strings, to biases."""
    if value == []:
        return []  # an object without entries, in PHP
    if not isinstance(value, dict):
        raise ValueError(f'logit_bias is {shorten(value)}; it must be an object like {{"1234": -5}}')
    if len(value) > MAX_LOGIT_BIAS:
        raise ValueError(f"logit_bias has {len(value)} entries; at most {MAX_LOGIT_BIAS} are allowed")
    wrong = [key for key in value if not isinstance(key, str) or _TOKEN_ID.fullmatch(key) is None]
    if wrong:
        shown = ", ".join(map(shorten, wrong[:MAX_SHOWN_KEYS]))
        more = f" and {len(wrong) - MAX_SHOWN_KEYS} more" if len(wrong) > MAX_SHOWN_KEYS else ""
        keys, each = ("the key", "it") if len(wrong) == 1 else ("the keys", "each")
        raise ValueError(f"logit_bias has {keys} {shown}{more}; {each} must be a token id in digits")
    biases = []
    for key, bias in value.items():
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise ValueError(f"logit_bias of token {key} is {shorten(bias)}; it must be a number")
        biases.append((int(key), bias))
    return biases


def _without_repeats(token_ids: list[int]) -> list[int]:
    """Each id once, so that a list of millions of ids becomes no longer than the vocabulary."""
    return list(dict.fromkeys(token_ids))


def _minus_one_is_random(seed: int) -> int | None:
    return None if seed == -1 else seed


def _minus_one_is_off(sigmas: float) -> float:
    return 0.0 if sigmas == -1.0 else sigmas


def _fields_of_params() -> dict[str, Any]:
    """A field for each parameter that is the same on all routes, in the order in which errors are looked for.

    A number has the type that its parameter has; `SamplingFields` overrides everything else.
    """
    kinds = {name: int | None if number.is_whole else float | None for name, number in NUMBERS.items()}
    return {
        _WIRE_NAMES.get(field.name, field.name): (kinds.get(field.name, Any), None)
        for field in fields(SamplingParams)
        if field.name not in _OF_A_ROUTE
    }


_WIRE_NAMES = {"dry_breaker_ids": "dry_sequence_breakers"}
_OF_A_ROUTE = ("max_tokens", "logprobs", "drawn_logprobs")  # each route has them in its own way

if TYPE_CHECKING:

    class _ParamFields(StrictModel):
        """Of the fields that are made, those which the server itself reads."""

        dry_multiplier: float | None = None
        prompt_logprobs: int | None = None
else:
    _ParamFields = create_model("_ParamFields", __base__=StrictModel, **_fields_of_params())


class SamplingFields(_ParamFields):
    """The sampling parameters that every generating route has. null means the default.

    Numbers are taken from `SamplingParams`, which also checks the ranges; declared here are only other fields.
    """

    top_n_sigma: Annotated[float, AfterValidator(_minus_one_is_off)] | None = None
    seed: Annotated[int, AfterValidator(_minus_one_is_random)] | None = None
    dry_sequence_breakers: (
        Annotated[list[str], BeforeValidator(_as_breakers, json_schema_input_type=list[str])] | None
    ) = None
    stop_token_ids: (
        Annotated[list[int], Field(fail_fast=True), bounded("stop_token_ids", MAX_STOP_TOKEN_IDS)] | None
    ) = None
    ignore_eos: bool | None = None
    logit_bias: (
        Annotated[list[tuple[int, float]], BeforeValidator(_as_biases, json_schema_input_type=dict[str, float])] | None
    ) = None
    allowed_token_ids: (
        Annotated[
            list[int],
            Field(fail_fast=True),
            AfterValidator(_without_repeats),
            bounded("allowed_token_ids", MAX_ALLOWED_IDS),
        ]
        | None
    ) = None
    bad_words: Annotated[list[str], BeforeValidator(_as_bad_words, json_schema_input_type=list[str])] | None = None
    logprob_token_ids: (
        Annotated[list[int], Field(fail_fast=True), bounded("logprob_token_ids", MAX_LOGPROB_TOKEN_IDS)] | None
    ) = None


# The fields that are those of SamplingParams without a tokenizer.
SAME_AS_PARAMS = tuple(
    field.name for field in fields(SamplingParams) if field.name in SamplingFields.model_fields.keys() - {"bad_words"}
)
