"""The sampler's input for one step, packed so that a step carries few arrays.

Calling a compiled program costs time per argument, so the columns of all rows travel in two
arrays, one of integers and one of floats; the column names live here and nowhere else.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from sampling.host.params import MAX_INT32, SamplingParams

(
    SLOT, POSITION, SEED_LOW, SEED_HIGH, TOP_K, USES, NUM_PROMPT_TOKENS, MIN_TOKENS, DRY_ALLOWED_LENGTH,
    DRY_LAST_N, NUM_INTS,
) = range(11)  # fmt: skip
(
    TEMPERATURE, TOP_P, MIN_P, TYPICAL_P, TOP_N_SIGMA, PRESENCE, FREQUENCY, REPETITION, DRY_MULTIPLIER, DRY_BASE,
    XTC_PROBABILITY, XTC_THRESHOLD, NUM_FLOATS,
) = range(13)  # fmt: skip

# What is positive stays so on the device, where less than this is 0: a share of 0 would keep no token at all, 0
# standard deviations all of them, and 0 times infinity, which is what a ban or a long repetition may come to, is NaN.
SMALLEST_POSITIVE = float(np.finfo(np.float32).tiny)

# In the sampler's output, in the place of a token: NOT_SAMPLED in a padding row, `vocab_size` where a logit is NaN,
# and `vocab_size + NOTHING_LEFT` where the request allows no token at all.
NOT_SAMPLED = -1
NOTHING_LEFT = 1


class Level(IntEnum):
    """How much of the sampler a row needs; a step runs the program of the highest of its rows."""

    GREEDY = 0  # the best token of the logits as they are
    RANDOM = 1  # a draw from the logits as they are: temperature and what cuts the distribution
    FULL = 2  # everything: what changes logits, grammars, logprobs


class SamplingRows(NamedTuple):
    """One entry for each row of logits. Host arrays when built, device arrays inside the program."""

    ints: np.ndarray  # int32[num_rows, NUM_INTS]
    floats: np.ndarray  # float32[num_rows, NUM_FLOATS]

    @classmethod
    def padding(cls, num_rows: int, num_slots: int) -> SamplingRows:
        """Rows that sample nothing: their slot is `num_slots`, which every scatter drops."""
        ints = np.zeros((num_rows, NUM_INTS), np.int32)
        ints[:, SLOT] = num_slots
        floats = np.zeros((num_rows, NUM_FLOATS), np.float32)
        floats[:, [TOP_P, TYPICAL_P, REPETITION, DRY_BASE]] = 1.0
        return cls(ints, floats)

    def set(self, row: int, slot: int, params: SamplingParams, *, seed: int, num_prompt_tokens: int, uses: int) -> None:
        """Writes what a request asks for into one row; its position changes with every step.

        Args:
            seed: 64 bits.
            uses: the bits of the features it uses.
        """
        ints, floats = self.ints[row], self.floats[row]
        ints[SLOT] = slot
        ints[[SEED_LOW, SEED_HIGH]] = np.array([seed & (2**64 - 1)], np.uint64).view(np.int32)
        ints[TOP_K] = min(max(params.top_k, 0), MAX_INT32)  # no vocabulary is as large
        ints[USES] = uses
        ints[NUM_PROMPT_TOKENS] = num_prompt_tokens
        ints[MIN_TOKENS] = min(params.min_tokens, MAX_INT32)
        ints[DRY_ALLOWED_LENGTH] = params.dry_allowed_length
        ints[DRY_LAST_N] = MAX_INT32 if params.dry_penalty_last_n < 0 else params.dry_penalty_last_n
        floats[TEMPERATURE] = params.temperature
        floats[TOP_P] = max(params.top_p, SMALLEST_POSITIVE)
        floats[MIN_P] = params.min_p
        floats[TYPICAL_P] = max(params.typical_p, SMALLEST_POSITIVE)
        floats[TOP_N_SIGMA] = _stays_positive(params.top_n_sigma)
        floats[PRESENCE] = params.presence_penalty
        floats[FREQUENCY] = params.frequency_penalty
        floats[REPETITION] = max(params.repetition_penalty, SMALLEST_POSITIVE)
        floats[DRY_MULTIPLIER] = _stays_positive(params.dry_multiplier)
        floats[DRY_BASE] = params.dry_base
        floats[XTC_PROBABILITY] = params.xtc_probability
        floats[XTC_THRESHOLD] = params.xtc_threshold


def _stays_positive(value: float) -> float:
    """0, which turns a feature off, stays 0."""
    return max(value, SMALLEST_POSITIVE) if value > 0.0 else 0.0
