"""Logits of whole sequences through `engine.step.forward.forward`, step by step, without scheduler or sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from cache.states import StateLayout
from cache.storage import KVLayout, zeros
from engine.backends.backends import kv_dtype
from engine.backends.base.backend import Backends
from engine.backends.base.token_layout import (
    ADAPTER,
    ADAPTER_SCALE,
    NUM_TOKENS,
    SLOT,
    START,
    TOKEN,
    pages_per_block,
)
from engine.interface.config import TILE_SIZE, EngineConfig
from engine.interface.types import AdapterChoice
from engine.models.open_model import open_model
from engine.models.parts.model import Model
from engine.parallel.placement import Kind, Placement, choose_devices
from engine.step.forward import forward
from engine.step.inputs import StepBatch
from engine.step.shapes import ShapeTable, StepShape
from engine.weights.layout import Params, Precision
from sampling.state import Slots

PAGE_SIZE = 32

# Programs of tiny models take far longer to compile than to run. Models that are served are tested with XLA's defaults.
QUICK_TO_COMPILE = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
if jax.__version_info__ < (0, 11):  # until then, XLA had another, quicker way to compile fusions
    QUICK_TO_COMPILE["xla_cpu_use_fusion_emitters"] = False


class ForwardSteps:
    """A model whose steps a test composes by hand."""

    def __init__(
        self, params: Params, model: Model, backends: Backends, kv_dtype: str,
        compiler_options: dict[str, Any] | None = None, placement: Placement | None = None,
    ) -> None:  # fmt: skip
        self.params = params
        self.model = model
        self._kv_dtype = kv_dtype
        self._placement = placement = placement or Placement()
        program = placement.spread(
            partial(forward, model=placement.model(model), backends=backends, groups=None),
            (Kind.PARAMS, Kind.PAGES, Kind.SAME, Kind.SAME), (Kind.SAME, Kind.PAGES),
        )  # fmt: skip
        self._forward = jax.jit(program, donate_argnums=1, compiler_options=compiler_options)

    @classmethod
    def load(cls, path: Path, config: EngineConfig, compiler_options: dict[str, Any] | None = None) -> ForwardSteps:
        """As an engine of this configuration would compute.

        Args:
            compiler_options: XLA's, by their names.
        """
        opened = open_model(path)
        opened = opened.laid_out_for(config.max_model_len)
        opened = opened.for_context(config.max_model_len or opened.config.context_length)
        backends, place, _ = choose_devices(config, opened.model)
        params = opened.load(backends.weights, Precision.of_engine(config), lambda *step: None).params
        return cls(params, opened.model, backends, kv_dtype(config, backends), compiler_options, place(params))

    def compiled_text(self, shape: StepShape) -> str:
        """The program of a step of this shape, as XLA has compiled it."""
        kv = self._placement.allocate(self._layout([[0]]), zeros)
        batch = StepBatch.padding(shape, 1, pages_per_block(PAGE_SIZE))
        return self._forward.lower(self.params, kv, Slots.zeros(1), batch).compile().as_text()

    def logits(
        self, sequences: Sequence[list[int]], *, num_decoded: int = 0, chunk: int = 1 << 20,
        shape: StepShape | None = None, waits: bool = True, adapters: Sequence[AdapterChoice | None] | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Of the last tokens, float32[num_sequences, num_decoded + 1, vocab].

        Each step takes the next tokens of all sequences: of each prompt a chunk, and once all are
        at their last `num_decoded` tokens, one.

        Args:
            shape: of every step, so that one program is compiled; None: the least shape of each step.
            adapters: of each sequence; None: of none.
            waits: whether a sequence at its last tokens waits for all others to be there, or decodes beside them.
        """
        layout = self._layout(sequences)
        kv, slots = self._placement.allocate(layout, zeros), self._placement.put(Slots.zeros(1))
        tables = self._tables(sequences, layout.num_pages)
        done, kept = [0] * len(sequences), [[] for _ in sequences]
        prompt_ends = [len(sequence) - num_decoded for sequence in sequences]
        while any(done[i] < len(sequence) for i, sequence in enumerate(sequences)):
            ends = [min(at + chunk, end) for at, end in zip(done, prompt_ends, strict=True)]
            if not waits or all(at >= end for at, end in zip(done, prompt_ends, strict=True)):
                ends = [
                    end if at < end else min(at + 1, len(sequence))
                    for at, end, sequence in zip(done, ends, sequences, strict=True)
                ]
            parts = [(i, done[i], end) for i, end in enumerate(ends) if end > done[i]]
            batch = _batch(sequences, parts, tables, shape)
            for row in batch.rows:
                adapter = None if adapters is None else adapters[row[SLOT]]
                if adapter is not None:
                    row[[ADAPTER, ADAPTER_SCALE]] = adapter.columns
            logits, kv = self._forward(self.params, kv, slots, batch)
            for (i, _, end), row in zip(parts, np.asarray(logits), strict=False):
                done[i] = end
                if end >= prompt_ends[i]:
                    kept[i].append(row)
        return np.array(kept)

    def _layout(self, sequences: Sequence[list[int]]) -> KVLayout:
        num_pages = 1 + sum(-(-len(sequence) // PAGE_SIZE) for sequence in sequences)
        layout = self.model.config.kv_layout(num_pages, PAGE_SIZE, self._kv_dtype)
        return replace(layout, states=StateLayout(self.model.config.states, num_slots=len(sequences)))

    def _tables(self, sequences: Sequence[list[int]], num_pages: int) -> np.ndarray:
        """int32[num_sequences, max_pages]; pages in a random order."""
        free = np.random.default_rng(0).permutation(np.arange(1, num_pages)).tolist()
        block = pages_per_block(PAGE_SIZE)
        longest = max(map(len, sequences))
        tables = np.zeros((len(sequences), -(-longest // (PAGE_SIZE * block)) * block), np.int32)
        for table, sequence in zip(tables, sequences, strict=True):
            for page in range(-(-len(sequence) // PAGE_SIZE)):
                table[page] = free.pop()
        return tables


def _batch(
    sequences: Sequence[list[int]], parts: list[tuple[int, int, int]], tables: np.ndarray, shape: StepShape | None
) -> StepBatch:
    """A step of the tokens from start to end of some sequences; its logits are in order.

    Args:
        parts: (sequence, start, end).
        shape: to pad the step to; None: as the engine pads.
    """
    tiles = [
        (i, first, min(first + TILE_SIZE, end))
        for i, start, end in parts
        if end - start > 1
        for first in range(start, end, TILE_SIZE)
    ]
    singles = [(i, start, end) for i, start, end in parts if end - start == 1]
    shape = shape or ShapeTable(max(len(singles), 1), max(len(tiles), 1)).fit(len(singles), len(tiles))
    batch = StepBatch.padding(shape, shape.num_rows, tables.shape[1])
    last_token: dict[int, int] = {}
    for row, (i, start, _) in enumerate(singles):
        batch.rows[row, [START, NUM_TOKENS, SLOT, TOKEN]] = start, 1, i, sequences[i][start]
        batch.page_table[row] = tables[i]
        last_token[i] = row
    for tile, (i, start, end) in enumerate(tiles):
        row = shape.num_decode_rows + tile
        batch.rows[row, [START, NUM_TOKENS, SLOT]] = start, end - start, i
        batch.page_table[row] = tables[i]
        batch.tile_tokens[tile, : end - start] = sequences[i][start:end]
        last_token[i] = shape.num_decode_rows + tile * TILE_SIZE + end - start - 1
    batch.sampled[: len(parts)] = [last_token[i] for i, _, _ in parts]
    return batch
