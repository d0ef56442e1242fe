"""What one step has to do, as far as its duration depends on it."""

from __future__ import annotations

from typing import NamedTuple


class StepWork(NamedTuple):
    """The counts that a step's duration is predicted from."""

    num_decode_rows: int = 0
    decode_context: int = 0  # tokens that the decode rows attend to, added up
    num_tiles: float = 0  # where the device computes no padding, a tile that is not full counts as a part of one
    tile_context: float = 0  # tokens that the last token of each tile attends to, added up; of a part of a tile, a part

    def with_tile(self, end: int, share: float = 1) -> StepWork:
        """The same with one more tile, or that share of one, whose last token is the `end`-th of its request."""
        return StepWork(
            self.num_decode_rows, self.decode_context, self.num_tiles + share, self.tile_context + end * share
        )
