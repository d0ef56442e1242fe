"""Steps of random shape, as the kernels take them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Step:
    """Single rows, then tiles, all in part padding."""

    rows: np.ndarray  # int32[num_rows, 3]: start, number of tokens, something else
    num_tiles: int
    tile_size: int

    @property
    def num_single(self) -> int:
        return len(self.rows) - self.num_tiles

    @property
    def num_tokens(self) -> int:
        return self.num_single + self.num_tiles * self.tile_size

    def first_token(self, row: int) -> int:
        return row if row < self.num_single else self.num_single + (row - self.num_single) * self.tile_size

    def tokens(self) -> list[tuple[int, int, int]]:
        """(row, token, position) of the real ones."""
        return [
            (row, self.first_token(row) + i, int(start) + i)
            for row, (start, count, _) in enumerate(self.rows)
            for i in range(count)
        ]

    def real(self) -> np.ndarray:
        """Indices of the real tokens."""
        return np.array([token for _, token, _ in self.tokens()], np.int32)


def make_step(singles: list[int], tiles: list[tuple[int, int]] = (), tile_size: int = 0) -> Step:
    """From the starts of single rows, negative for padding, and the (start, number of tokens) of tiles."""
    rows = [(max(start, 0), int(start >= 0), -7) for start in singles] + [(*tile, -7) for tile in tiles]
    return Step(np.array(rows, np.int32).reshape(-1, 3), len(tiles), tile_size)


def random_step(random: np.random.Generator, num_tokens: int) -> Step:
    """A step of about so many tokens, of which some are padding."""
    num_single = int(random.integers(0, num_tokens + 1))
    num_tiles = int(random.integers(0, 4)) if num_single < num_tokens else 0
    tile_size = max(1, (num_tokens - num_single) // num_tiles) if num_tiles else 0
    singles = random.integers(-1, 3, num_single).tolist() or ([0] if num_tiles == 0 else [])
    return make_step(singles, [(0, int(random.integers(0, tile_size + 1))) for _ in range(num_tiles)], tile_size)
