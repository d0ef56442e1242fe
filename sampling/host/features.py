"""The list of sampling features, in the one order of operations.

A feature's function on the device is in its own file, which sampling/registry.py names; that fails at import where the
two differ. The bits of the USES column, the columns of a step's rows and the C++ header follow from this list.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Any, NamedTuple

import numpy as np

from sampling.host.params import MAX_INT32, SamplingParams

# The device takes anything smaller for 0, so a smaller positive value is raised to this one. A 0 would mean something
# else: a share of 0 keeps no token, 0 standard deviations keep all of them, and 0 times the infinity that a ban or a
# long repetition may reach is NaN.
SMALLEST_POSITIVE = float(np.finfo(np.float32).tiny)


class Stage(Enum):
    """When a feature acts. Stages follow one another; within each the order is that of the list."""

    MEMORY = auto()  # keeps state that other features read
    LOGITS = auto()  # changes the logits
    FILTER = auto()  # removes tokens from the distribution that a row above temperature 0 draws from
    REPORT = auto()  # outputs more than the token


class Column(NamedTuple):
    """A parameter that the device reads: an integer or a float, as the field of SamplingParams is."""

    name: str  # of the field
    convert: Callable[[Any], Any] | None = None  # to what the device reads; None: it reads the parameter as it is


class SamplingFeature(NamedTuple):
    """One row of the list."""

    name: str
    stage: Stage
    columns: tuple[Column, ...] = ()
    # Whether a request uses the feature, by its parameters. A filter needs no predicate: it is on where
    # its first column differs from the default.
    is_used: Callable[[SamplingParams], bool] = lambda params: False
    keeps_state: bool = True  # for each request that uses it; no filter does


def _up_to_int32(value: int) -> int:
    return min(value, MAX_INT32)


def _stays_positive(value: float) -> float:
    """0, which turns a feature off, stays 0."""
    return max(value, SMALLEST_POSITIVE) if value > 0.0 else 0.0


DRAWN_LOGPROBS = "drawn_logprobs"
GRAMMAR = "grammar"  # used where a request has a grammar, whatever its parameters; the mask comes with the step

FEATURES = (
    SamplingFeature("history", Stage.MEMORY, is_used=lambda p: bool(p.bad_words) or p.dry_multiplier > 0.0),
    SamplingFeature("allowed_tokens", Stage.LOGITS, is_used=lambda p: p.allowed_token_ids is not None),
    SamplingFeature("logit_bias", Stage.LOGITS, is_used=lambda p: bool(p.logit_bias)),
    SamplingFeature("min_tokens", Stage.LOGITS, (Column("min_tokens", _up_to_int32),), lambda p: p.min_tokens > 0),
    SamplingFeature("bad_words", Stage.LOGITS, is_used=lambda p: bool(p.bad_words)),
    SamplingFeature(GRAMMAR, Stage.LOGITS, keeps_state=False),
    SamplingFeature(
        "penalties",
        Stage.LOGITS,
        (Column("repetition_penalty", _stays_positive), Column("frequency_penalty"), Column("presence_penalty")),
        lambda p: (p.presence_penalty, p.frequency_penalty, p.repetition_penalty) != (0.0, 0.0, 1.0),
    ),
    SamplingFeature(
        "dry",
        Stage.LOGITS,
        (
            Column("dry_multiplier", _stays_positive),
            Column("dry_base"),
            Column("dry_allowed_length"),
            Column("dry_penalty_last_n", lambda last_n: MAX_INT32 if last_n < 0 else last_n),
        ),
        lambda p: p.dry_multiplier > 0.0,
    ),
    SamplingFeature("top_n_sigma", Stage.FILTER, (Column("top_n_sigma", _stays_positive),)),
    SamplingFeature("min_p", Stage.FILTER, (Column("min_p"),)),
    SamplingFeature("top_k", Stage.FILTER, (Column("top_k", lambda top_k: _up_to_int32(max(top_k, 0))),)),
    SamplingFeature("typical_p", Stage.FILTER, (Column("typical_p", _stays_positive),)),
    SamplingFeature("top_p", Stage.FILTER, (Column("top_p", _stays_positive),)),
    SamplingFeature("xtc", Stage.FILTER, (Column("xtc_probability"), Column("xtc_threshold"))),
    SamplingFeature("logprobs", Stage.REPORT, is_used=lambda p: p.logprobs is not None),
    SamplingFeature(
        DRAWN_LOGPROBS, Stage.REPORT, is_used=lambda p: p.drawn_logprobs and p.logprobs is not None, keeps_state=False
    ),
)
