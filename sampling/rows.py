"""The sampler's input for one step, packed so that a step carries few arrays.

Calling a compiled program costs time per argument, so the columns of all rows travel in two
arrays, one of integers and one of floats; the column names live here and nowhere else.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SLOT, POSITION, SEED_LOW, SEED_HIGH, TOP_K, NUM_INTS = range(6)
TEMPERATURE, TOP_P, MIN_P, NUM_FLOATS = range(4)

NOT_SAMPLED = -1  # in the sampler's output: a padding row


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
        floats[:, TOP_P] = 1.0
        return cls(ints, floats)
