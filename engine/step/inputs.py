"""The inputs of one step, gathered from its plan and from the sequence buffer.

No array is written to once its step is on the device, because on CPU `device_put` may alias a host array while the step
that reads it still runs. Steps may share arrays. Of a step that awaits masks, `fill_masks` may change `sampling.ints`
before its sampling is dispatched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from engine.backends.base.token_layout import (
    ADAPTER,
    ADAPTER_SCALE,
    END,
    LOAD,
    NUM_ROW_INTS,
    NUM_TOKENS,
    SAVE,
    SAVE_END,
    SECOND,
    SLOT,
    START,
    TOKEN,
)
from engine.interface.config import TILE_SIZE
from engine.schedule.request import Request
from engine.schedule.sequence_buffer import NUM_ROPE_AXES, SequenceBuffer
from engine.schedule.step_plan import StepPlan
from engine.step.pooled_tiles import PooledTile, pooled_tiles
from engine.step.shapes import ShapeTable, StepShape
from sampling.host.features import GRAMMAR
from sampling.host.params import SamplingParams
from sampling.host.rows import BITS, POSITION, USES, SamplerVariant, SamplingRows, used_features
from sampling.processors.logits_processor import Admission, StateShape
from sampling.state import row_of

FROM_DEVICE = -1  # in the TOKEN column: the input token is slots.last_token[slot]


class StepBatch(NamedTuple):
    """The input arrays of the `forward` program: the decode rows of a step, followed by its tiles."""

    rows: np.ndarray  # int32[num_rows, NUM_ROW_INTS]; NUM_TOKENS is 0 in a padding row
    page_table: np.ndarray  # int32[num_rows, max_pages_per_request]
    tile_tokens: np.ndarray  # int32[num_tiles, TILE_SIZE]
    sampled: np.ndarray  # int32[num_sampled_rows], index of the token whose logits are wanted; -1 in padding
    rope_positions: np.ndarray | None = None  # int32[num_tokens, NUM_ROPE_AXES]; None: those in the sequence

    @property
    def arrays(self) -> list[np.ndarray]:
        """All that there are."""
        return [array for array in self if array is not None]

    @classmethod
    def padding(cls, shape: StepShape, num_sampled_rows: int, max_pages_per_request: int) -> StepBatch:
        """A batch of padding rows alone."""
        return cls(
            rows=np.zeros((shape.num_rows, NUM_ROW_INTS), np.int32),
            page_table=np.zeros((shape.num_rows, max_pages_per_request), np.int32),  # the null page everywhere
            tile_tokens=np.zeros((shape.num_tiles, TILE_SIZE), np.int32),
            sampled=np.full(num_sampled_rows, -1, np.int32),
        )


_ALIGNMENT = 64  # bytes; XLA copies a host array that begins elsewhere


class ScoredTile(NamedTuple):
    """A tile of a prompt whose logprobs are wanted; each of its tokens gives the logprobs of the next one."""

    request: Request
    hidden: np.ndarray  # int32[TILE_SIZE], indices of the tile's tokens among those of all tiles; -1 in padding
    following: np.ndarray  # int32[TILE_SIZE], the prompt token that follows each of them
    num_tokens: int  # how many tokens of the tile are followed by a prompt token


class StepInputs(NamedTuple):
    """Everything that a dispatch sends to the device for one step."""

    shape: StepShape
    batch: StepBatch
    sampling: SamplingRows
    level: SamplerVariant  # the sampling program; the highest level of the sampled rows
    num_sampled: int  # how many rows of `sampling` are not padding
    num_scheduler_steps: int  # how many steps the device does in one program
    awaits_masks: bool  # a row has a grammar, whose mask depends on a token that is still in flight
    admitted: list[Request]  # requests whose sampling features must be written to the device first
    scored: list[ScoredTile]
    pooled: list[PooledTile]


class _Decoded(NamedTuple):
    """A step that decoded one token of each of its requests, with what the next step must match to reuse its arrays."""

    inputs: StepInputs
    sampling_ints: np.ndarray  # a private copy of those in the inputs
    slots: list[int]
    slots_array: np.ndarray  # intp[num_requests], the same as `slots`
    next_starts: list[int]  # behind those that the same program may compute ahead
    next_starts_array: np.ndarray  # int32[num_requests], the same as `next_starts`
    num_added: int  # of the buffer, when the step was built
    num_page_changes: int  # of the buffer, too
    is_plain: bool  # its rows take their tokens from the device, and load and save no snapshot


class InputBuilder:
    """Builds the inputs of one step after another.

    Most steps decode the requests of the step before. Only their positions are new, and the page table if a request has
    got a page, so they reuse the rest for a quarter, or half, of the cost.
    """

    def __init__(self, buffer: SequenceBuffer, table: ShapeTable) -> None:
        self._buffer = buffer
        self._table = table
        self._last: _Decoded | None = None

    def build(self, plan: StepPlan, *, num_ahead: int = 0) -> StepInputs:
        """The same as `build_inputs`; arrays that do not change from one step to the next may be the same objects.

        In the same program, so many more steps may decode what the one before them has sampled; their pages are there.
        """
        slots = [request.slot for request in plan.requests]
        last = self._last
        if last is not None and self._goes_on(plan, slots, last):
            self._last = self._next(last, plan, num_ahead)
            return self._last.inputs
        inputs = build_inputs(plan, self._buffer, self._table)
        self._last = None
        if _only_decodes(plan):
            slots_array = np.array(slots, np.intp)
            next_starts = np.array(plan.starts, np.int32) + np.int32(1 + num_ahead)
            self._buffer.device_token_position[slots_array] = next_starts
            self._last = _Decoded(
                inputs._replace(admitted=[]), inputs.sampling.ints.copy(), slots, slots_array,
                next_starts.tolist(), next_starts, self._buffer.num_added, self._buffer.num_page_changes,
                is_plain=False,
            )  # fmt: skip
        return inputs

    def withdraw(self, plan: StepPlan, num_steps: int) -> None:
        """Notes that so many of the steps that were built last are not computed; `plan` is of any of them."""
        if num_steps:
            self._buffer.device_token_position[[request.slot for request in plan.requests]] -= num_steps
            self._last = None

    def _goes_on(self, plan: StepPlan, slots: list[int], last: _Decoded) -> bool:
        """Whether a step decodes the next token of each request of the last one, in the same order."""
        return (
            self._buffer.num_added == last.num_added
            and slots == last.slots
            and plan.starts == last.next_starts
            and _only_decodes(plan)
        )

    def _next(self, last: _Decoded, plan: StepPlan, num_ahead: int) -> _Decoded:
        inputs, buffer, num_requests = last.inputs, self._buffer, len(last.slots)
        starts, ends = last.next_starts_array, last.next_starts_array + np.int32(1)
        next_starts = ends + np.int32(num_ahead) if num_ahead else ends
        rows = inputs.batch.rows.copy()
        rows[:num_requests, START] = starts
        if not last.is_plain:
            rows[:num_requests, TOKEN] = FROM_DEVICE  # the last step has left it there
            rows[:num_requests, LOAD : SAVE_END + 1] = 0
        has_states = bool(plan.loads or plan.saves)
        if has_states:
            _write_states(rows, plan, range(num_requests))
        page_table = inputs.batch.page_table
        if buffer.num_page_changes != last.num_page_changes:
            row_slots = np.full(len(rows), buffer.padding_slot, np.intp)
            row_slots[:num_requests] = last.slots_array
            page_table = _page_table(buffer, row_slots)
        last.sampling_ints[:num_requests, POSITION] = ends
        buffer.device_token_position[last.slots_array] = next_starts
        rope = _rope_positions(buffer, last.slots_array, starts, len(rows))
        batch = StepBatch(rows, page_table, inputs.batch.tile_tokens, inputs.batch.sampled, rope)
        sampling = SamplingRows(last.sampling_ints.copy(), inputs.sampling.floats)
        # One call of each constructor: a `_replace` costs three times as much, and every token pays for it.
        return _Decoded(
            StepInputs(
                inputs.shape, batch, sampling, inputs.level, inputs.num_sampled, inputs.num_scheduler_steps,
                inputs.awaits_masks, inputs.admitted, inputs.scored, inputs.pooled,
            ),
            last.sampling_ints, last.slots, last.slots_array, next_starts.tolist(), next_starts,
            last.num_added, buffer.num_page_changes, is_plain=not has_states,
        )  # fmt: skip


def _only_decodes(plan: StepPlan) -> bool:
    """Whether each row of a step is one token, and its next one is sampled, once."""
    return plan.num_scheduler_steps == 1 and plan.num_tokens.count(1) == plan.num_rows and all(plan.samples)


def build_inputs(plan: StepPlan, buffer: SequenceBuffer, table: ShapeTable) -> StepInputs:
    """Gathers the rows of a plan from the sequence buffer, and notes there which tokens the device will hold."""
    slots = np.array([request.slot for request in plan.requests], np.intp)
    starts = np.array(plan.starts, np.int32)
    num_decode = plan.num_tokens.count(1)  # single-token rows come first in a plan
    if num_decode == plan.num_rows:
        ends, num_tiles = starts + 1, 0
    else:
        lengths = np.array(plan.num_tokens, np.int32)
        ends = starts + lengths
        tiles_per_row = -(-lengths[num_decode:] // TILE_SIZE)
        num_tiles = int(tiles_per_row.sum())
    shape = table.fit(num_decode, num_tiles)
    num_sampled_rows = table.num_sampled_rows(shape)
    rows = np.zeros((shape.num_rows, NUM_ROW_INTS), np.int32)
    row_slots = np.full(shape.num_rows, buffer.padding_slot, np.intp)
    tile_tokens = np.zeros((shape.num_tiles, TILE_SIZE), np.int32)
    num_tokens = shape.num_decode_rows + shape.num_tiles * TILE_SIZE
    rope = _rope_positions(buffer, slots[:num_decode], starts[:num_decode], num_tokens)

    decode, decode_slots, decode_starts = rows[:num_decode], slots[:num_decode], starts[:num_decode]
    row_slots[:num_decode] = decode_slots
    decode[:, START] = decode_starts
    decode[:, NUM_TOKENS] = 1
    decode[:, SLOT] = decode_slots
    decode[:, TOKEN] = FROM_DEVICE
    decode[:, ADAPTER : ADAPTER_SCALE + 1] = buffer.adapters[decode_slots]
    is_known = buffer.device_token_position.take(decode_slots) != decode_starts
    if np.count_nonzero(is_known):
        decode[is_known, TOKEN] = buffer.token_ids[decode_slots[is_known], decode_starts[is_known]]

    first_rows = np.arange(plan.num_rows)  # where each row of the plan begins
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
        row_slots[first : first + num_tiles] = slots[owner]
        tiles = rows[first : first + num_tiles]
        tiles[:, START] = tile_starts
        tiles[:, NUM_TOKENS] = tile_lengths
        tiles[:, SLOT] = slots[owner]
        tiles[:, ADAPTER : ADAPTER_SCALE + 1] = buffer.adapters[slots[owner]]
        if plan.requests[-1].is_whole:  # and so all others are
            tiles[:, END] = ends[owner]
            tiles[:, SECOND] = np.array([request.second_start for request in plan.requests], np.int32)[owner]
        positions = tile_starts[:, None] + np.arange(TILE_SIZE)
        inside = np.minimum(positions, ends[owner, None] - 1)
        tile_tokens[:num_tiles] = buffer.token_ids[slots[owner, None], inside]
        if rope is not None and buffer.rope_positions is not None:
            of_tiles = buffer.rope_positions[slots[owner, None], inside].reshape(-1, NUM_ROPE_AXES)
            rope[first : first + len(of_tiles)] = of_tiles
        first_rows[num_decode:] = first + first_tile
        last_token[num_decode:] = first + first_tile * TILE_SIZE + lengths[num_decode:] - 1
        for row in range(num_decode, plan.num_rows):
            if plan.requests[row].prompt_logprobs is not None:
                scored += _scored_tiles(plan, row, int(first_tile[row - num_decode]))
            if plan.requests[row].poolings:
                pooled += pooled_tiles(plan, row, int(first_tile[row - num_decode]))

    _write_states(rows, plan, first_rows)
    sampled_slots, positions = slots, ends
    if not all(plan.samples):
        samples = np.array(plan.samples, bool)
        sampled_slots, positions, last_token = slots[samples], ends[samples], last_token[samples]
    num_sampled = len(sampled_slots)
    sampled = np.full(num_sampled_rows, -1, np.int32)
    sampled[:num_sampled] = last_token
    sampling_slots = np.full(num_sampled_rows, buffer.padding_slot, np.intp)
    sampling_slots[:num_sampled] = sampled_slots
    sampling = buffer.sampling.take(sampling_slots)
    sampling.ints[:num_sampled, POSITION] = positions
    buffer.device_token_position[sampled_slots] = positions + (plan.num_scheduler_steps - 1)
    level = SamplerVariant(buffer.levels.take(sampling_slots).max())
    awaits_masks = level is SamplerVariant.FULL and bool((sampling.ints[:num_sampled, USES] & BITS[GRAMMAR]).any())
    batch = StepBatch(rows, _page_table(buffer, row_slots), tile_tokens, sampled, rope)
    return StepInputs(
        shape, batch, sampling, level, num_sampled, plan.num_scheduler_steps, awaits_masks, buffer.take_admitted(),
        scored, pooled,
    )  # fmt: skip


def _rope_positions(
    buffer: SequenceBuffer, slots: np.ndarray, starts: np.ndarray, num_tokens: int
) -> np.ndarray | None:
    """Those of decode rows, the first of so many tokens; None where the model needs none."""
    if buffer.rope_positions is None:
        return None
    positions = np.zeros((num_tokens, NUM_ROPE_AXES), np.int32)
    positions[: len(slots)] = buffer.rope_positions[slots, starts]
    return positions


def _write_states(rows: np.ndarray, plan: StepPlan, first_rows: Sequence[int] | np.ndarray) -> None:
    """Writes which rows load and save snapshots; each row of the plan begins at one of `first_rows`."""
    for row, entry in plan.loads:
        rows[first_rows[row], LOAD] = entry
    for row, end, entry in plan.saves:
        tile = (end - 1 - plan.starts[row]) // TILE_SIZE
        rows[first_rows[row] + tile, SAVE : SAVE_END + 1] = entry, end


def _page_table(buffer: SequenceBuffer, row_slots: np.ndarray) -> np.ndarray:
    """The page tables of the rows, aligned so that a CPU device reads them in place; most bytes of the inputs."""
    num_rows, num_pages = len(row_slots), buffer.page_table.shape[1]
    memory = np.empty(num_rows * num_pages + _ALIGNMENT // 4, np.int32)
    first = -memory.ctypes.data % _ALIGNMENT // 4
    table = memory[first : first + num_rows * num_pages].reshape(num_rows, num_pages)
    # All slots are valid, so clipping changes nothing; without it, numpy would fill a copy of `out` first.
    return buffer.page_table.take(row_slots, axis=0, out=table, mode="clip")


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


_ANY_PARAMS = SamplingParams(allowed_token_ids=(0,))  # every feature can make a row of these


class FeatureWrite(NamedTuple):
    """A row of one feature's state, to be written to the device before a request's first step."""

    name: str  # of the feature
    slot: int
    row: Any  # a tree of numpy arrays, as `row_of` makes it


def writes_of(request: Request, shape: StateShape) -> Iterator[FeatureWrite]:
    """The rows that an admitted request needs, from the tokens that are committed now."""
    token_ids = np.array(request.token_ids, np.int32)
    admission = Admission(request.params, token_ids, request.num_tokens_before_output, request.stop_ids)
    for name in used_features(request.params):
        yield FeatureWrite(name, request.slot, row_of(name, admission, shape))


def any_row(name: str, shape: StateShape) -> Any:
    """A row of a feature; only its nesting, shapes and types are meaningful."""
    return row_of(name, Admission(_ANY_PARAMS, np.zeros(1, np.int32), 1, frozenset()), shape)
