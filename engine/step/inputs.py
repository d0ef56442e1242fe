"""All inputs of one step, gathered from its plan and from the sequence buffer.

All arrays are new for each step, because on CPU `device_put` may alias a host array while the step that
reads it still runs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from engine.border.config import TILE_SIZE
from engine.border.types import Pooling
from engine.kernels.interface.token_layout import NUM_TOKENS, SLOT, START, TOKEN
from engine.schedule.request import Request
from engine.schedule.sequence_buffer import SequenceBuffer
from engine.schedule.step_plan import StepPlan
from engine.step.batch import FROM_DEVICE, StepBatch
from engine.step.shapes import ShapeTable, StepShape
from sampling.host.features import GRAMMAR
from sampling.host.rows import POSITION, USES, Level, SamplingRows
from sampling.host.usage import BITS


class ScoredTile(NamedTuple):
    """A tile of a prompt whose logprobs are asked for; each of its tokens gives the logprobs of the next one."""

    request: Request
    hidden: np.ndarray  # int32[TILE_SIZE], indices of the tile's tokens among those of all tiles; -1 in padding
    following: np.ndarray  # int32[TILE_SIZE], the prompt token that follows each of them
    num_tokens: int  # how many tokens of the tile are followed by a prompt token


class PooledTile(NamedTuple):
    """A tile of which hidden states are added to an embedding."""

    request: Request
    hidden: np.ndarray  # int32[TILE_SIZE], indices of its tokens among those of all tiles; negative in padding
    shares: np.ndarray  # float32[TILE_SIZE], of each in the embedding


class StepInputs(NamedTuple):
    """All that a dispatch sends to the device for one step."""

    shape: StepShape
    batch: StepBatch
    sampling: SamplingRows
    level: Level  # the sampling program; the highest level of the sampled rows
    num_sampled: int  # how many rows of `sampling` are not padding
    num_repeats: int  # how many steps the device does in one program
    awaits_masks: bool  # a row has a grammar, whose mask depends on a token that is still in flight
    admitted: list[Request]  # requests whose sampling features must be written to the device first
    scored: list[ScoredTile]
    pooled: list[PooledTile]


def build_inputs(plan: StepPlan, buffer: SequenceBuffer, table: ShapeTable) -> StepInputs:
    """Gathers the rows of a plan from the sequence buffer, and notes there which tokens the device will hold."""
    slots = np.array([request.slot for request in plan.requests], np.int32)
    starts = np.array(plan.starts, np.int32)
    lengths = np.array(plan.num_tokens, np.int32)
    samples = np.array(plan.samples, bool)
    ends = starts + lengths
    num_decode = int(np.searchsorted(lengths > 1, True))  # single-token rows come first in a plan

    tiles_per_row = -(-lengths[num_decode:] // TILE_SIZE)
    num_tiles = int(tiles_per_row.sum())
    shape = table.fit(num_decode, num_tiles)
    batch = StepBatch.padding(shape, table.num_sampled_rows(shape), buffer.page_table.shape[1])

    decode = batch.rows[:num_decode]
    decode[:, START] = starts[:num_decode]
    decode[:, NUM_TOKENS] = 1
    decode[:, SLOT] = slots[:num_decode]
    on_device = buffer.device_token_position[slots[:num_decode]] == starts[:num_decode]
    known = buffer.token_ids[slots[:num_decode], starts[:num_decode]]
    decode[:, TOKEN] = np.where(on_device, FROM_DEVICE, known)
    # All slots are valid, so clipping changes nothing; without it, numpy would fill a copy of `out` first.
    np.take(buffer.page_table, slots[:num_decode], axis=0, out=batch.page_table[:num_decode], mode="clip")

    # Index of each row's last token among the step's tokens.
    last_token = np.arange(plan.num_rows, dtype=np.int32)
    scored: list[ScoredTile] = []
    pooled: list[PooledTile] = []
    if num_tiles:
        first = shape.num_decode_rows
        owner = np.repeat(np.arange(num_decode, plan.num_rows), tiles_per_row)
        first_tile = np.cumsum(tiles_per_row) - tiles_per_row  # index of each row's first tile
        within = np.arange(num_tiles) - np.repeat(first_tile, tiles_per_row)
        tile_starts = starts[owner] + within * TILE_SIZE
        tile_lengths = np.minimum(ends[owner] - tile_starts, TILE_SIZE)
        tiles = batch.rows[first : first + num_tiles]
        tiles[:, START] = tile_starts
        tiles[:, NUM_TOKENS] = tile_lengths
        tiles[:, SLOT] = slots[owner]
        batch.page_table[first : first + num_tiles] = buffer.page_table[slots[owner]]
        positions = tile_starts[:, None] + np.arange(TILE_SIZE)
        inside = np.minimum(positions, ends[owner, None] - 1)
        batch.tile_tokens[:num_tiles] = buffer.token_ids[slots[owner, None], inside]
        last_token[num_decode:] = first + first_tile * TILE_SIZE + lengths[num_decode:] - 1
        for row in range(num_decode, plan.num_rows):
            if plan.requests[row].prompt_logprobs is not None:
                scored += _scored_tiles(plan, row, int(first_tile[row - num_decode]))
            if plan.requests[row].pooling is not None:
                pooled += _pooled_tiles(plan, row, int(first_tile[row - num_decode]))

    sampled_slots, positions = slots[samples], ends[samples]
    num_sampled = len(sampled_slots)
    batch.sampled[:num_sampled] = last_token[samples]
    sampling = SamplingRows.padding(len(batch.sampled), buffer.num_slots)
    sampling.ints[:num_sampled] = buffer.sampling.ints[sampled_slots]
    sampling.ints[:num_sampled, POSITION] = positions
    sampling.floats[:num_sampled] = buffer.sampling.floats[sampled_slots]
    buffer.device_token_position[sampled_slots] = positions + plan.num_repeats - 1
    level = Level(buffer.levels[sampled_slots].max(initial=Level.GREEDY))
    awaits_masks = level is Level.FULL and bool((sampling.ints[:num_sampled, USES] & BITS[GRAMMAR]).any())
    return StepInputs(
        shape, batch, sampling, level, num_sampled, plan.num_repeats, awaits_masks, buffer.take_admitted(), scored,
        pooled,
    )  # fmt: skip


def _scored_tiles(plan: StepPlan, row: int, first_tile: int) -> list[ScoredTile]:
    """The tiles of one row, without tokens that no prompt token follows."""
    tiles = []
    request, start = plan.requests[row], plan.starts[row]
    end = min(start + plan.num_tokens[row], request.num_prompt_tokens - 1)
    for index, tile_start in enumerate(range(start, end, TILE_SIZE), start=first_tile):
        count = min(TILE_SIZE, end - tile_start)
        hidden, following = np.full(TILE_SIZE, -1, np.int32), np.zeros(TILE_SIZE, np.int32)
        hidden[:count] = np.arange(index * TILE_SIZE, index * TILE_SIZE + count)
        following[:count] = request.token_ids[tile_start + 1 : tile_start + 1 + count]
        tiles.append(ScoredTile(request, hidden, following, count))
    return tiles


def _pooled_tiles(plan: StepPlan, row: int, first_tile: int) -> list[PooledTile]:
    """The tiles of one row that have a share in the embedding of its prompt."""
    request, start = plan.requests[row], plan.starts[row]
    num_pooled = request.num_prompt_tokens - 1
    end = min(start + plan.num_tokens[row], num_pooled)
    tiles = []
    for index, tile_start in enumerate(range(start, end, TILE_SIZE), start=first_tile):
        positions = np.arange(tile_start, tile_start + TILE_SIZE)
        is_pooled = (positions < end) & ((request.pooling is Pooling.MEAN) | (positions == num_pooled - 1))
        if is_pooled.any():
            hidden = np.where(is_pooled, np.arange(index * TILE_SIZE, (index + 1) * TILE_SIZE), -1)
            share = 1 / num_pooled if request.pooling is Pooling.MEAN else 1.0
            tiles.append(PooledTile(request, hidden.astype(np.int32), (is_pooled * share).astype(np.float32)))
    return tiles
