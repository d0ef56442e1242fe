"""The input arrays of the `forward` program."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from engine.backends.base.token_layout import NUM_ROW_INTS
from engine.interface.config import TILE_SIZE
from engine.step.shapes import StepShape

FROM_DEVICE = -1  # in the TOKEN column: the input token is slots.last_token[slot]


class StepBatch(NamedTuple):
    """The decode rows of a step, followed by its tiles."""

    rows: np.ndarray  # int32[num_rows, NUM_ROW_INTS]; NUM_TOKENS is 0 in a padding row
    page_table: np.ndarray  # int32[num_rows, max_pages_per_request]
    tile_tokens: np.ndarray  # int32[num_tiles, TILE_SIZE]
    sampled: np.ndarray  # int32[num_sampled_rows], index of the token whose logits are wanted; -1 in padding

    @classmethod
    def padding(cls, shape: StepShape, num_sampled_rows: int, max_pages_per_request: int) -> StepBatch:
        """A batch of padding rows alone."""
        return cls(
            rows=np.zeros((shape.num_rows, NUM_ROW_INTS), np.int32),
            page_table=np.zeros((shape.num_rows, max_pages_per_request), np.int32),  # the null page everywhere
            tile_tokens=np.zeros((shape.num_tiles, TILE_SIZE), np.int32),
            sampled=np.full(num_sampled_rows, -1, np.int32),
        )
