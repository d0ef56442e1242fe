"""The wire format of a step from the leader to its followers: the inputs of its programs, array after array.

A header has what the arrays' shapes follow from. So the frame of a step without feature writes and scored or pooled
tiles has one size for each shape of a step, and a follower reads it without copying it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from engine.interface.config import TILE_SIZE
from engine.schedule.request import Request
from engine.step.grammar_masks import allocate_masks
from engine.step.inputs import FeatureWrite, ScoredTile, StepBatch, StepInputs, any_row
from engine.step.pooled_tiles import PooledTile
from engine.step.shapes import StepShape
from sampling.host.params import SamplingParams
from sampling.host.rows import SamplerVariant, SamplingRows
from sampling.processors.logits_processor import StateShape
from sampling.registry import STATEFUL

_NOBODY = Request("", [], SamplingParams(), 0, 0)  # a follower knows no requests

# The header: int32 each, in this order.
_FRONT = (
    "num_decode_rows", "num_tiles", "num_sampled_rows", "level", "num_sampled", "num_scheduler_steps", "awaits_masks",
    "num_writes", "num_scored", "num_pooled",
)  # fmt: skip


@dataclass(frozen=True)
class StepFormat:
    """The sizes of an engine that the shapes of all arrays follow from, together with the header."""

    max_pages_per_request: int
    state_shape: StateShape

    def pack(self, inputs: StepInputs, writes: Sequence[FeatureWrite]) -> list[memoryview]:
        """The pieces of a step's frame; they share the memory of its arrays."""
        front = (
            *inputs.shape, len(inputs.batch.sampled), inputs.level, inputs.num_sampled, inputs.num_scheduler_steps,
            inputs.awaits_masks, len(writes), len(inputs.scored), len(inputs.pooled),
        )  # fmt: skip
        arrays = [np.array(front, np.int32), *inputs.batch.arrays, *inputs.sampling]
        for scored in inputs.scored:
            arrays += [scored.hidden, scored.following]
        for pooled in inputs.pooled:
            arrays += [pooled.hidden, pooled.shares]
        names = self._names
        for write in writes:
            arrays.append(np.array([names.index(write.name), write.slot], np.int32))
            arrays += [
                np.asarray(part, template.dtype)
                for part, template in zip(jax.tree.leaves(write.row), self._row_leaves(write.name), strict=True)
            ]
        return [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays]

    def unpack(self, content: bytes) -> tuple[StepInputs, list[FeatureWrite]]:
        """The step of a frame, without requests; its arrays share the frame's memory. Raises ValueError."""
        rest = _Rest(content)
        front = dict(zip(_FRONT, rest.take((len(_FRONT),), np.int32).tolist(), strict=True))
        shape = StepShape(front["num_decode_rows"], front["num_tiles"])
        padding = StepBatch.padding(shape, front["num_sampled_rows"], self.max_pages_per_request)
        batch = StepBatch(*map(rest.take_like, padding.arrays))
        sampling = SamplingRows._make(
            rest.take_like(array)
            for array in SamplingRows.padding(front["num_sampled_rows"], self.state_shape.num_slots)
        )
        tile = (TILE_SIZE,)
        scored = [
            ScoredTile(_NOBODY, rest.take(tile, np.int32), rest.take(tile, np.int32), 0)
            for _ in range(front["num_scored"])
        ]
        pooled = [
            PooledTile(_NOBODY, rest.take(tile, np.int32), rest.take(tile, np.float32))
            for _ in range(front["num_pooled"])
        ]
        writes = [self._take_write(rest) for _ in range(front["num_writes"])]
        rest.check_empty()
        inputs = StepInputs(
            shape, batch, sampling, SamplerVariant(front["level"]), front["num_sampled"], front["num_scheduler_steps"],
            bool(front["awaits_masks"]), [], scored, pooled,
        )  # fmt: skip
        return inputs, writes

    def pack_masks(self, inputs: StepInputs, masks: np.ndarray) -> list[memoryview]:
        """The masks of a step, and the integers of its rows, which the end of a grammar may have changed."""
        return [inputs.sampling.ints.reshape(-1).view(np.uint8).data, masks.reshape(-1).view(np.uint8).data]

    def unpack_masks(self, inputs: StepInputs, content: bytes) -> tuple[StepInputs, np.ndarray]:
        """The inputs of the step that has waited for these masks, and the masks; raises ValueError if sizes differ."""
        rest = _Rest(content)
        ints = rest.take_like(inputs.sampling.ints)
        masks = rest.take_like(allocate_masks(len(inputs.batch.sampled), self.state_shape.num_words))
        rest.check_empty()
        return inputs._replace(sampling=inputs.sampling._replace(ints=ints)), masks

    @property
    def _names(self) -> list[str]:
        return sorted(STATEFUL)

    def _row_leaves(self, name: str) -> list[np.ndarray]:
        return [np.asarray(leaf) for leaf in jax.tree.leaves(any_row(name, self.state_shape))]

    def _take_write(self, rest: _Rest) -> FeatureWrite:
        index, slot = rest.take((2,), np.int32).tolist()
        name = self._names[index]
        template = any_row(name, self.state_shape)
        row: Any = jax.tree.map(lambda leaf: rest.take_like(np.asarray(leaf)), template)
        return FeatureWrite(name, slot, row)


class _Rest:
    """The part of a frame that has not been read yet."""

    def __init__(self, content: bytes) -> None:
        self._content = np.frombuffer(content, np.uint8)
        self._at = 0

    def take(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
        end = self._at + math.prod(shape) * np.dtype(dtype).itemsize
        if end > len(self._content):
            raise ValueError(f"a step of {len(self._content)} bytes, where at least {end} were due")
        piece, self._at = self._content[self._at : end], end
        return piece.view(dtype).reshape(shape)

    def take_like(self, template: np.ndarray) -> np.ndarray:
        return self.take(template.shape, template.dtype)

    def check_empty(self) -> None:
        if self._at != len(self._content):
            raise ValueError(f"a step of {len(self._content)} bytes, where {self._at} were due")
