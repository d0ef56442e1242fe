"""The sampler's input for one step, packed into two arrays.

Calling a compiled program costs time per argument, so the columns of all rows travel in one array of integers and one
of floats: first those of every row, then the features' parameters in the order of sampling/host/features.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from sampling.host.features import FEATURES, GRAMMAR, Column, Stage
from sampling.host.params import NUMBERS, SamplingParams

_OWN_INTS = ("slot", "position", "seed_low", "seed_high", "uses", "num_prompt_tokens")
SLOT, POSITION, SEED_LOW, SEED_HIGH, USES, NUM_PROMPT_TOKENS = range(len(_OWN_INTS))
_OWN_FLOATS = ("temperature",)
TEMPERATURE = 0

_COLUMNS = [column for feature in FEATURES for column in feature.columns]
_WHOLE = [column for column in _COLUMNS if NUMBERS[column.name].is_whole]
_REAL = [column for column in _COLUMNS if not NUMBERS[column.name].is_whole]


def _reader(columns: Sequence[Column]) -> Callable[[SamplingParams], list[Any]]:
    """Makes the function that reads the columns from a request's parameters."""
    read = attrgetter(*(column.name for column in columns))
    conversions = [(index, column.convert) for index, column in enumerate(columns) if column.convert is not None]

    def values(params: SamplingParams) -> list[Any]:
        converted = list(read(params))
        for index, convert in conversions:
            converted[index] = convert(converted[index])
        return converted

    return values


_WHOLE_VALUES, _REAL_VALUES = _reader(_WHOLE), _reader(_REAL)

# The index of each column in its array.
INT_COLUMNS = {name: index for index, name in enumerate((*_OWN_INTS, *(column.name for column in _WHOLE)))}
FLOAT_COLUMNS = {name: index for index, name in enumerate((*_OWN_FLOATS, *(column.name for column in _REAL)))}
NUM_INTS, NUM_FLOATS = len(INT_COLUMNS), len(FLOAT_COLUMNS)

# In the sampler's output, instead of a token: NOT_SAMPLED in a padding row, `vocab_size` where a logit is NaN,
# and `vocab_size + NOTHING_LEFT` where the request allows no token at all.
NOT_SAMPLED = -1
NOTHING_LEFT = 1


class SamplerVariant(IntEnum):
    """The variants of the `sample` program; a step runs the highest that one of its rows needs."""

    GREEDY = 0  # the best token of the logits as they are
    RANDOM = 1  # a draw from the logits as they are: temperature and filters
    FULL = 2  # everything: what changes logits, grammars, logprobs


class SamplingRows(NamedTuple):
    """One entry for each row of logits. Host arrays when built, device arrays inside the program."""

    ints: np.ndarray  # int32[num_rows, NUM_INTS]
    floats: np.ndarray  # float32[num_rows, NUM_FLOATS]

    @classmethod
    def padding(cls, num_rows: int, num_slots: int) -> SamplingRows:
        """Rows that sample nothing: their slot is `num_slots`, which every scatter drops."""
        ints, floats = np.zeros((num_rows, NUM_INTS), np.int32), np.zeros((num_rows, NUM_FLOATS), np.float32)
        ints[:, SLOT] = num_slots
        ints[:, len(_OWN_INTS) :] = _OFF_INTS
        floats[:, len(_OWN_FLOATS) :] = _OFF_FLOATS
        return cls(ints, floats)

    def take(self, indices: np.ndarray) -> SamplingRows:
        """New arrays of the rows at these indices."""
        return SamplingRows(self.ints.take(indices, axis=0), self.floats.take(indices, axis=0))

    def set(self, row: int, slot: int, params: SamplingParams, *, seed: int, num_prompt_tokens: int, uses: int) -> None:
        """Writes a request's parameters into one row; its position changes with every step."""
        ints, floats = self.ints[row], self.floats[row]
        ints[SLOT] = slot
        ints[[SEED_LOW, SEED_HIGH]] = np.array([seed & (2**64 - 1)], np.uint64).view(np.int32)
        ints[USES] = uses
        ints[NUM_PROMPT_TOKENS] = num_prompt_tokens
        ints[len(_OWN_INTS) :] = _WHOLE_VALUES(params)
        floats[TEMPERATURE] = params.temperature
        floats[len(_OWN_FLOATS) :] = _REAL_VALUES(params)


# Padding rows have the values of a request with default parameters.
_OFF_INTS = np.array(_WHOLE_VALUES(SamplingParams()), np.int32)
_OFF_FLOATS = np.array(_REAL_VALUES(SamplingParams()), np.float32)


def values_of(name: str, rows: SamplingRows) -> np.ndarray:
    """The column of a parameter, [num_rows]."""
    return rows.ints[:, INT_COLUMNS[name]] if name in INT_COLUMNS else rows.floats[:, FLOAT_COLUMNS[name]]


def value_when_off(name: str) -> int | float:
    """The column's value for a request with the default parameter."""
    if name in INT_COLUMNS:
        return int(_OFF_INTS[INT_COLUMNS[name] - len(_OWN_INTS)])
    return float(_OFF_FLOATS[FLOAT_COLUMNS[name] - len(_OWN_FLOATS)])


# Bits of the USES column. Cuts have none: their columns say what they do.
_BEYOND_FILTERS = tuple(feature for feature in FEATURES if feature.stage is not Stage.FILTER)
BITS = {feature.name: 1 << index for index, feature in enumerate(_BEYOND_FILTERS)}


def used_features(params: SamplingParams) -> list[str]:
    """Names of the features that a request uses and that keep a state for it."""
    return [feature.name for feature in _BEYOND_FILTERS if feature.keeps_state and feature.is_used(params)]


def uses_bits(params: SamplingParams, *, has_grammar: bool = False) -> int:
    """The features of a request as bits of the USES column."""
    used = sum(BITS[feature.name] for feature in _BEYOND_FILTERS if feature.is_used(params))
    return used | (BITS[GRAMMAR] if has_grammar else 0)


def level_of(params: SamplingParams, *, has_grammar: bool = False) -> SamplerVariant:
    """The smallest variant that a request needs."""
    if uses_bits(params, has_grammar=has_grammar):
        return SamplerVariant.FULL
    return SamplerVariant.GREEDY if params.temperature == 0.0 else SamplerVariant.RANDOM
