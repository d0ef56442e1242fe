"""Steps of recurrent layers in tests: rows of sequences in slots, and the states between the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from engine.backends.base.token_layout import LOAD, NUM_ROW_INTS, NUM_TOKENS, SAVE, SAVE_END, SLOT, START

NUM_LAYERS = 2
LAYER = 1
NUM_SLOTS = 3
NUM_ENTRIES = 6  # three of snapshots
TILE = 64
NUM_DECODE = 4  # rows of each step, so that one program is compiled for each case
NUM_TILES = 8

# Inputs of all tokens, then the states, rows and page table of a step: the outputs and the states.
Program = Callable[..., tuple[jax.Array, tuple[jax.Array, ...]]]


@dataclass(frozen=True)
class Row:
    """Of a step: tokens `start` to `end` of the sequence in a slot."""

    slot: int
    start: int
    end: int
    load: int = 0
    save: int = 0
    save_end: int = 0


class Steps:
    """Steps of one program, and the states between them."""

    def __init__(
        self, program: Program, sequences: Sequence[tuple[np.ndarray, ...]], states: Sequence[np.ndarray]
    ) -> None:
        """
        Args:
            sequences: the inputs of each slot's tokens, [num_tokens, …].
        """
        self.sequences = sequences
        self.states = tuple(map(jnp.asarray, states))
        self.slots: dict[int, int] = {}  # whose tokens are those of another slot
        self._step = program

    def run(self, *parts: Row, is_at_the_end: bool = False) -> list[np.ndarray]:
        """The outputs of each part; parts of one token come first. Padding is behind the rows, or in front of them."""
        singles = [part for part in parts if part.end - part.start == 1]
        tiles = [
            replace(part, start=at, end=min(at + TILE, part.end), load=part.load if at == part.start else 0)
            for part in parts
            if part.end - part.start > 1
            for at in range(part.start, part.end, TILE)
        ]
        num_decode, num_tiles = NUM_DECODE, NUM_TILES
        first_single = NUM_DECODE - len(singles) if is_at_the_end else 0
        first_tile = NUM_DECODE + (NUM_TILES - len(tiles) if is_at_the_end else 0)
        num_tokens = num_decode + num_tiles * TILE
        inputs = [np.full((num_tokens, each.shape[1]), np.nan, np.float32) for each in self.sequences[0]]
        rows = np.zeros((num_decode + num_tiles, NUM_ROW_INTS), np.int32)
        places: dict[Row, list[tuple[int, int]]] = {part: [] for part in parts}
        for index, row in [*enumerate(singles, first_single), *enumerate(tiles, first_tile)]:
            first = index if index < num_decode else num_decode + (index - num_decode) * TILE
            count = row.end - row.start
            rows[index, [START, NUM_TOKENS, SLOT, LOAD]] = row.start, count, row.slot, row.load
            if row.start < row.save_end <= row.end:
                rows[index, [SAVE, SAVE_END]] = row.save, row.save_end
            for array, whole in zip(inputs, self.sequences[self.slots.get(row.slot, row.slot)], strict=True):
                array[first : first + count] = whole[row.start : row.end]
            owner = next(p for p in parts if p.slot == row.slot and p.start <= row.start and row.end <= p.end)
            places[owner].append((first, count))
        table = np.zeros((len(rows), 8), np.int32)
        table[:, :] = 1 + np.arange(8)  # none is the null page, which marks padding
        out, self.states = self._step(*inputs, self.states, rows, table)
        made = np.asarray(out)
        return [np.concatenate([made[at : at + count] for at, count in places[part]]) for part in parts]

    def entry(self, index: int) -> list[np.ndarray]:
        """What is held of a slot or a snapshot in the layer."""
        return [np.asarray(state[LAYER, index]) for state in self.states]
