"""What one step has to do, as far as its duration depends on it."""

from __future__ import annotations

from typing import NamedTuple


class StepWork(NamedTuple):
    """The counts that a step's duration is predicted from."""

    num_decode_rows: int = 0
    decode_context: int = 0  # tokens that the decode rows attend to, added up
    num_tiles: int = 0
    tile_context: int = 0  # tokens that the last token of each tile attends to, added up

    def with_tile(self, end: int) -> StepWork:
        """The same with one more tile, whose last token is the `end`-th of its request."""
        return StepWork(self.num_decode_rows, self.decode_context, self.num_tiles + 1, self.tile_context + end)
