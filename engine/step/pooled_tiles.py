"""The tiles of a prompt of whose hidden states its embedding is made, in one way or in several."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from engine.interface.config import TILE_GRAIN, TILE_SIZE
from engine.interface.types import Pooling
from engine.schedule.request import Request
from engine.schedule.step_plan import StepPlan

NUM_WAYS = len(Pooling) - 1  # in which a text can be pooled at once; without NONE


class PooledTile(NamedTuple):
    """Hidden states of which a part of an embedding is made, the sum of their shares.

    Where the shares are -1, it is their maximum, and those without a share are not among them.
    """

    request: Request
    hidden: np.ndarray  # int32[TILE_SIZE], indices of its tokens among those of all tiles; negative in padding
    shares: np.ndarray  # float32[TILE_SIZE], of each in the embedding
    way: int = 0  # the index among the request's poolings

    @property
    def tile(self) -> int:
        """Its index among the tiles of the step, where it is one of them."""
        return int(self.hidden.max()) // TILE_SIZE

    @property
    def has_tokens(self) -> np.ndarray:
        """Of each block of TILE_GRAIN tokens, whether it has any, bool[TILE_SIZE // TILE_GRAIN]."""
        are_there: np.ndarray = np.any(self.hidden.reshape(-1, TILE_GRAIN) >= 0, axis=1)
        return are_there


def pooled_tiles(plan: StepPlan, row: int, first_tile: int) -> list[PooledTile]:
    """The tiles that contribute to the embedding of a row's prompt.

    They begin at multiples of TILE_SIZE in the prompt, as steps cut it only between blocks of TILE_GRAIN tokens: so a
    block is always summed alike, and the sum of all blocks has the same bits however the prompt was cut.
    """
    request, start = plan.requests[row], plan.starts[row]
    num_pooled = request.num_pooled_tokens
    if request.poolings == (Pooling.NONE,):
        return _unpooled_tiles(plan, row, first_tile)
    first = min(request.first_pooled, num_pooled - 1)
    end = min(start + plan.num_tokens[row], num_pooled)
    tiles = []
    for tile_start in range(start - start % TILE_SIZE, end, TILE_SIZE):
        positions = np.arange(tile_start, tile_start + TILE_SIZE)
        indices = first_tile * TILE_SIZE + positions - start
        is_there = (positions >= max(start, first)) & (positions < end)
        for way, pooling in enumerate(request.poolings):
            only = {Pooling.CLS: first, Pooling.LAST: num_pooled - 1}.get(pooling)
            is_pooled = is_there if only is None else is_there & (positions == only)
            if is_pooled.any():
                hidden = np.where(is_pooled, indices, -1)
                shares = is_pooled * _shares(pooling, positions, first, num_pooled)
                tiles.append(PooledTile(request, hidden.astype(np.int32), shares.astype(np.float32), way))
    return tiles


def _shares(pooling: Pooling, positions: np.ndarray, first: int, end: int) -> np.ndarray:
    """Those of tokens in the embedding of all tokens from `first` to `end`; as `PooledTile` has them."""
    if pooling is Pooling.WEIGHTED_MEAN:
        weights: np.ndarray = (positions + 1) / ((end * (end + 1) - first * (first + 1)) // 2)
        return weights
    of_all = {Pooling.MEAN: 1 / (end - first), Pooling.MEAN_SQRT_LEN: 1 / (end - first) ** 0.5, Pooling.MAX: -1.0}
    return np.full(len(positions), of_all.get(pooling, 1.0))


def _unpooled_tiles(plan: StepPlan, row: int, first_tile: int) -> list[PooledTile]:
    """The same where each token has its own embedding: one for each token, or of an encoder, for each of its tiles."""
    request, start = plan.requests[row], plan.starts[row]
    num_tokens = min(start + plan.num_tokens[row], request.num_pooled_tokens) - start
    places = first_tile * TILE_SIZE + np.arange(num_tokens, dtype=np.int32)
    num_each = TILE_SIZE if request.is_whole else 1
    tiles = []
    for first in range(0, num_tokens, num_each):
        own = places[first : first + num_each]
        hidden, shares = np.full(TILE_SIZE, -1, np.int32), np.zeros(TILE_SIZE, np.float32)
        hidden[: len(own)] = own
        shares[0] = not request.is_whole  # an encoder's states are taken as they are
        tiles.append(PooledTile(request, hidden, shares))
    return tiles
