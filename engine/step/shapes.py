"""The shapes that steps are compiled for.

A step has decode rows of one token each and tiles of TILE_SIZE tokens; a chunk of a prompt takes as many tiles as it
needs. Both counts are padded up to a bucket, so that few compiled programs serve all steps.
"""

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from engine.interface.config import TILE_SIZE

_MIXED_DECODE_ROWS = 8  # the smaller bucket of decode rows in a step with tiles


class StepShape(NamedTuple):
    """One compiled size of a step."""

    num_decode_rows: int
    num_tiles: int

    @property
    def num_rows(self) -> int:
        return self.num_decode_rows + self.num_tiles

    @property
    def num_tokens(self) -> int:
        return self.num_decode_rows + self.num_tiles * TILE_SIZE


@dataclass(frozen=True)
class ShapeTable:
    """Every shape of an engine with `max_num_seqs` slots and `max_num_tiles` tiles a step."""

    max_num_seqs: int
    max_num_tiles: int
    is_of_encoder: bool = False  # whose steps have tiles alone

    @cached_property
    def row_buckets(self) -> list[int]:
        """Padded numbers of sampled rows, and of decode rows in a step without tiles."""
        return _powers_of_two(self.max_num_seqs)

    @cached_property
    def tile_buckets(self) -> list[int]:
        return _powers_of_two(self.max_num_tiles)

    @cached_property
    def mixed_row_buckets(self) -> list[int]:
        """Padded numbers of decode rows in a step with tiles."""
        if self.is_of_encoder:
            return [0]
        return sorted({min(_MIXED_DECODE_ROWS, self.max_num_seqs), self.max_num_seqs})

    def all(self) -> list[StepShape]:
        """Every shape: first those without tiles, then those with tiles."""
        decode = [StepShape(rows, 0) for rows in self.row_buckets]
        mixed = [StepShape(rows, tiles) for rows in self.mixed_row_buckets for tiles in self.tile_buckets]
        return mixed if self.is_of_encoder else decode + mixed

    def fit(self, num_decode_rows: int, num_tiles: int) -> StepShape:
        """The smallest shape that holds the step; ValueError where the scheduler's budget and this table disagree."""
        if num_tiles:
            return StepShape(_bucket(self.mixed_row_buckets, num_decode_rows), _bucket(self.tile_buckets, num_tiles))
        return StepShape(_bucket(self.row_buckets, num_decode_rows), 0)

    def num_sampled_rows(self, shape: StepShape) -> int:
        """Rows of logits of a shape; at most `max_num_seqs`, because a request samples at most once in a step."""
        return self.fit_sampled(min(shape.num_rows, self.max_num_seqs))

    def fit_sampled(self, num_rows: int) -> int:
        """The smallest bucket of sampled rows that holds `num_rows`."""
        return _bucket(self.row_buckets, num_rows)


def _powers_of_two(limit: int) -> list[int]:
    """1, 2, 4, … below the limit, and the limit."""
    return [1 << i for i in range((limit - 1).bit_length())] + [limit]


def _bucket(buckets: list[int], wanted: int) -> int:
    index = bisect_left(buckets, wanted)
    if index == len(buckets):
        raise ValueError(f"{wanted} is beyond the largest compiled size, {buckets[-1]}")
    return buckets[index]
