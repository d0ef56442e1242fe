"""The compiled programs of one engine: which there are, their abstract inputs, and where earlier starts left them."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cache.storage import KVLayout, KVPages
from engine.backends.base.backend import Backends
from engine.interface.config import TILE_SIZE
from engine.interface.types import Progress
from engine.models.parts.model import Model
from engine.parallel.placement import Kind, OverMesh, shapes_of
from engine.schedule.sequence_buffer import NUM_ROPE_AXES, SequenceBuffer
from engine.step import picture_encoding
from engine.step.compiled import CompiledPrograms
from engine.step.device_arrays import DeviceArrays
from engine.step.forward import decode_burst, decode_steps, encode, forward, forward_prompt, pool_tile, score_tile
from engine.step.grammar_masks import allocate_masks
from engine.step.inputs import StepBatch, any_row
from engine.step.jax_cache import cache_passed_by
from engine.step.page_io import PageBits, read_page, write_page
from engine.step.pooled_tiles import NUM_WAYS
from engine.step.program_cache import ProgramCache, ProgramTrees, described, environment
from engine.step.shapes import ShapeTable, StepShape
from engine.weights.layout import Params
from sampling.host.rows import SamplerVariant, SamplingRows
from sampling.processors.logits_processor import FeatureStates, StateShape
from sampling.sampler import sample, sample_full
from sampling.state import Slots, write_row

# The kinds of the first arguments of programs.
_TAKES_BATCH = (Kind.PARAMS, Kind.PAGES, Kind.SAME, Kind.SAME)
_TAKES_HIDDEN = (Kind.PARAMS, Kind.SAME, Kind.SAME, Kind.SAME)

_ANY_PAGE = np.int32(0)
_ANY_BURST = np.zeros(1, np.int32)

Lowerings = dict[Hashable, Callable[[], jax.stages.Lowered]]


class StepPrograms:
    """Lowers the programs of every shape and compiles them ahead of time.

    The keys of `compiled` are ("forward", shape), ("sample", num_rows, variant), ("burst", num_rows),
    ("multi_step", num_rows, variant), ("write", feature), "score", "pool", "read page", "write page", and those of an
    encoder of pictures. Those of an encoder of texts are ("encode", shape).
    """

    def __init__(
        self, arrays: DeviceArrays, model: Model, backends: Backends, layout: KVLayout, buffer: SequenceBuffer,
        table: ShapeTable, state_shape: StateShape, *, num_scheduler_steps: int, store: Path | None, copies_pages: bool,
    ) -> None:  # fmt: skip
        """
        Args:
            num_scheduler_steps: decode steps that one program may do.
            store: the folder of compiled programs; None: they are not kept.
            copies_pages: whether pages are read and written one by one.
        """
        self.compiled = CompiledPrograms()
        # By number of rows: the masks of steps of SamplerVariant.FULL without a grammar. No row reads them.
        self.no_masks: dict[int, jax.Array] = {}
        self._arrays = arrays
        self._placement = arrays.placement
        self._abstract = arrays.placement.abstract
        self._model = model
        self._local_model = arrays.placement.model(model)
        self._backends = backends
        self._layout = layout
        self._num_slots = buffer.num_slots
        self._page_table_shape = buffer.page_table.shape
        self._max_model_len = buffer.token_ids.shape[1]
        self._uses_mrope = buffer.rope_positions is not None
        self._table = table
        self._state_shape = state_shape
        self._num_scheduler_steps = num_scheduler_steps
        self._store = store
        self._copies_pages = copies_pages
        # Whether there are bursts. Where XLA makes the logits, it could compute them in another way than in `forward`.
        self.has_bursts = (
            backends.bursts is not None and not model.is_encoder and not isinstance(arrays.placement, OverMesh)
        )

    def compile(self, progress: Progress) -> None:
        """Compiles the programs of every shape from abstract arrays, or loads those of an earlier start."""
        lowerings = self._of_encoder() if self._model.is_encoder else self._of_decoder()
        # JAX loads a cached program for all devices, and an engine uses one of them.
        cache = None if self._store is None or jax.device_count() > 1 else self._cache_in(self._store)
        with nullcontext() if cache is None else cache_passed_by():
            self.compiled.compile(lowerings, progress, cache)

    def are_bursts(self, shape: StepShape, variant: SamplerVariant) -> bool:
        """Whether a step is a burst, perhaps of itself alone: then one program computes and samples it."""
        return self.has_bursts and shape.num_tiles == 0 and variant is not SamplerVariant.FULL

    def _of_encoder(self) -> Lowerings:
        return {("encode", shape): partial(self._lower_encode, shape) for shape in self._table.all()}

    def _of_decoder(self) -> Lowerings:
        lowerings: Lowerings = {}
        for shape in self._table.all():
            lowerings["forward", shape] = partial(self._lower_forward, shape)
        for num_rows in self._table.row_buckets:
            for variant in (SamplerVariant.GREEDY, SamplerVariant.RANDOM):
                if num_rows in self._sampled_apart:
                    lowerings["sample", num_rows, variant] = partial(self._lower_sample, num_rows, variant)
                if self._num_scheduler_steps > 1:
                    lowerings["multi_step", num_rows, variant] = partial(self._lower_multi_step, num_rows, variant)
            lowerings["sample", num_rows, SamplerVariant.FULL] = partial(self._lower_sample_full, num_rows)
            if self.has_bursts:
                lowerings["burst", num_rows] = partial(self._lower_burst, num_rows)
            self.no_masks[num_rows] = self._placement.put(jax.device_put(self.new_masks(num_rows)))
        for name in self._arrays.states:
            lowerings["write", name] = partial(self._lower_write, name)
        lowerings["score"] = self._lower_score
        lowerings["pool"] = self._lower_pool
        if self._copies_pages:
            lowerings["read page"] = self._lower_read_page
            lowerings["write page"] = self._lower_write_page
        if self._model.encoder is not None:
            abstract = self._abstract(self._arrays.params), self._abstract(self._arrays.kv)
            lowerings |= picture_encoding.lowerings(*abstract, self._model.encoder, self._max_model_len, self._backends)
        # Those of an earlier start are loaded in this order, and a request may come at once.
        return {key: lowerings[key] for key in (*self._first_needed(), *lowerings)}

    def new_masks(self, num_rows: int) -> np.ndarray:
        """Masks that allow nothing, uint32[num_rows, num_words]."""
        return allocate_masks(num_rows, self._state_shape.num_words)

    @property
    def _sampled_apart(self) -> set[int]:
        """The numbers of rows of steps that sample, but for features, in a program of their own."""
        shapes = [shape for shape in self._table.all() if not self.are_bursts(shape, SamplerVariant.RANDOM)]
        return {self._table.num_sampled_rows(shape) for shape in shapes}

    def _first_needed(self) -> Iterator[Hashable]:
        """The keys of the programs that a first request needs: alone, with a short prompt and plain sampling."""
        for shape in (self._table.fit(0, 1), self._table.fit(1, 0)):
            num_rows, variants = self._table.num_sampled_rows(shape), (SamplerVariant.RANDOM, SamplerVariant.GREEDY)
            if self.are_bursts(shape, SamplerVariant.GREEDY):
                yield "burst", num_rows
            else:
                yield "forward", shape
                yield from (("sample", num_rows, variant) for variant in variants)
            if self._num_scheduler_steps > 1 and shape.num_tiles == 0:
                yield from (("multi_step", num_rows, variant) for variant in variants)

    def _cache_in(self, store: Path) -> ProgramCache:
        module = type(self._model).__module__
        backends = self._backends
        parts = (
            module, self._model, backends.for_products.name, backends.for_attention.name, backends.detail,
            self._layout, self._table, self._num_scheduler_steps, self._state_shape, self._page_table_shape,
            self._copies_pages,
        )  # fmt: skip
        arrays = self._arrays
        batch = self._batch(StepShape(1, 0), 1)
        trees = shapes_of(ArrayTrees(arrays.params, arrays.kv, arrays.slots, arrays.states, batch))
        return ProgramCache(store, f"{parts!r} {described(trees)} {environment([module])}", trees.of)

    # ---------------------------------------------------------------- lowering, one method a kind of program

    def _lower_forward(self, shape: StepShape) -> jax.stages.Lowered:
        arrays, batch = self._arrays, self._batch(shape, self._table.num_sampled_rows(shape))
        program = jax.jit(self._forward_prompt if shape.num_tiles else self._forward, donate_argnums=1)
        return program.lower(*map(self._abstract, (arrays.params, arrays.kv, arrays.slots, batch)))

    def _lower_encode(self, shape: StepShape) -> jax.stages.Lowered:
        arrays, batch = self._arrays, self._batch(shape, 1)
        shares = np.zeros((NUM_WAYS, shape.num_tiles, TILE_SIZE), np.float32)
        program = jax.jit(self._of_model(encode, max_num_tiles=self._table.max_num_tiles), donate_argnums=1)
        return program.lower(*map(self._abstract, (arrays.params, arrays.kv, batch, shares, np.int32(1))))

    def _lower_sample(self, num_rows: int, variant: SamplerVariant) -> jax.stages.Lowered:
        function = partial(sample, all_greedy=variant is SamplerVariant.GREEDY, backend=self._backends.sampler)
        inputs = map(self._abstract, (self._arrays.slots, self._sampling(num_rows)))
        return jax.jit(function, donate_argnums=1).lower(self._logits(num_rows), *inputs)

    def _lower_sample_full(self, num_rows: int) -> jax.stages.Lowered:
        arrays = self._arrays
        program = jax.jit(partial(sample_full, backend=self._backends.sampler), donate_argnums=(1, 2))
        inputs = (arrays.slots, arrays.states, self._sampling(num_rows), self.new_masks(num_rows))
        return program.lower(self._logits(num_rows), *map(self._abstract, inputs))

    def _lower_burst(self, num_rows: int) -> jax.stages.Lowered:
        arrays, batch = self._arrays, self._batch(StepShape(num_rows, 0), num_rows)
        function = self._of_model(decode_burst, groups=self._layout.groups)
        inputs = (arrays.params, arrays.kv, arrays.slots, batch, self._sampling(num_rows), _ANY_BURST)
        return jax.jit(function, donate_argnums=(1, 2)).lower(*map(self._abstract, inputs))

    def _lower_multi_step(self, num_rows: int, variant: SamplerVariant) -> jax.stages.Lowered:
        arrays, batch = self._arrays, self._batch(StepShape(num_rows, 0), num_rows)
        function = self._of_model(
            decode_steps,
            num_steps=self._num_scheduler_steps,
            all_greedy=variant is SamplerVariant.GREEDY,
            groups=self._layout.groups,
        )
        results = (Kind.PAGES, Kind.SAME, Kind.SAME)
        program = jax.jit(self._placement.spread(function, (*_TAKES_BATCH, Kind.SAME), results), donate_argnums=(1, 2))
        inputs = (arrays.params, arrays.kv, arrays.slots, batch, self._sampling(num_rows))
        return program.lower(*map(self._abstract, inputs))

    def _lower_write(self, name: str) -> jax.stages.Lowered:
        row = any_row(name, self._state_shape)
        program = jax.jit(write_row, donate_argnums=0)
        return program.lower(*map(self._abstract, (self._arrays.states[name], np.int32(0), row)))

    def _lower_score(self) -> jax.stages.Lowered:
        tokens = np.zeros(TILE_SIZE, np.int32)
        program = jax.jit(self._placement.spread(self._of_model(score_tile), _TAKES_HIDDEN, (Kind.SAME,)))
        return program.lower(*map(self._abstract, (self._arrays.params, self._hidden_of_tiles(), tokens, tokens)))

    def _lower_pool(self) -> jax.stages.Lowered:
        tokens, shares = np.zeros(TILE_SIZE, np.int32), np.zeros(TILE_SIZE, np.float32)
        program = jax.jit(self._placement.spread(self._of_model(pool_tile), _TAKES_HIDDEN, (Kind.SAME,)))
        return program.lower(*map(self._abstract, (self._arrays.params, self._hidden_of_tiles(), tokens, shares)))

    def _lower_read_page(self) -> jax.stages.Lowered:
        return jax.jit(read_page).lower(self._abstract(self._arrays.kv), _ANY_PAGE)

    def _lower_write_page(self) -> jax.stages.Lowered:
        kv = self._abstract(self._arrays.kv)
        page: PageBits = jax.eval_shape(read_page, kv, _ANY_PAGE)
        return jax.jit(write_page, donate_argnums=0).lower(kv, _ANY_PAGE, page)

    # ---------------------------------------------------------------- what they are lowered from

    @property
    def _forward(self) -> Callable[..., Any]:
        function = self._of_model(forward, groups=self._layout.groups)
        return self._placement.spread(function, _TAKES_BATCH, (Kind.SAME, Kind.PAGES))

    @property
    def _forward_prompt(self) -> Callable[..., Any]:
        function = self._of_model(forward_prompt, max_num_tiles=self._table.max_num_tiles, groups=self._layout.groups)
        return self._placement.spread(function, _TAKES_BATCH, (Kind.SAME, Kind.PAGES, Kind.SAME))

    def _of_model(self, function: Callable[..., Any], **constants: Any) -> Callable[..., Any]:
        return partial(function, model=self._local_model, backends=self._backends, **constants)

    def _hidden_of_tiles(self) -> jax.ShapeDtypeStruct:
        """The hidden states of tokens in tiles that `forward_prompt` returns."""
        arrays, batch = self._arrays, self._batch(StepShape(0, 1), 1)
        _, _, hidden = jax.eval_shape(self._forward_prompt, arrays.params, arrays.kv, arrays.slots, batch)
        return self._placement.abstract_array(hidden.shape, hidden.dtype)

    def _batch(self, shape: StepShape, num_sampled_rows: int) -> StepBatch:
        batch = StepBatch.padding(shape, num_sampled_rows, self._page_table_shape[1])
        if not self._uses_mrope:
            return batch
        num_tokens = shape.num_decode_rows + shape.num_tiles * TILE_SIZE
        return batch._replace(rope_positions=np.zeros((num_tokens, NUM_ROPE_AXES), np.int32))

    def _sampling(self, num_rows: int) -> SamplingRows:
        return SamplingRows.padding(num_rows, self._num_slots)

    def _logits(self, num_rows: int) -> jax.ShapeDtypeStruct:
        return self._placement.abstract_array((num_rows, self._model.config.vocab_size), jnp.float32)


class ArrayTrees(NamedTuple):
    """The arrays that programs work on, or their shapes, and how each program nests them."""

    params: Params
    kv: KVPages
    slots: Slots
    states: FeatureStates
    batch: StepBatch  # of any shape

    def of(self, key: Hashable) -> ProgramTrees:
        """The arguments and results of a program without tracing it, numbers for arrays; raises KeyError."""
        params, kv, slots, states, batch = self
        rows = SamplingRows._make([0] * 2)
        page = (0,) if kv.scales is None else (0, 0)
        match key:
            case "forward", StepShape(num_tiles=num_tiles):
                return ProgramTrees((params, kv, slots, batch), (0, kv, 0) if num_tiles else (0, kv))
            case "encode", _:
                return ProgramTrees((params, kv, batch, 0), (0, kv))
            case "sample", _, SamplerVariant.FULL:
                return ProgramTrees((0, slots, states, rows, 0), (slots, states, 0))
            case "sample", _, _:
                return ProgramTrees((0, slots, rows), (slots, 0))
            case "burst", _:
                return ProgramTrees((params, kv, slots, batch, rows, 0), (kv, slots, 0))
            case "multi_step", _, _:
                return ProgramTrees((params, kv, slots, batch, rows), (kv, slots, 0))
            case "write", str() as name:
                return ProgramTrees((states[name], 0, states[name]), states[name])
            case "score" | "pool":
                return ProgramTrees((params, 0, 0, 0), 0)
            case picture_encoding.BEGIN, _:
                return ProgramTrees((params, 0, 0), 0)
            case picture_encoding.LAYER, _:
                return ProgramTrees((params, 0, 0, 0), 0)
            case picture_encoding.END, _:
                return ProgramTrees((params, 0, 0), 0)
            case picture_encoding.STORE, _:
                return ProgramTrees((kv, 0, 0), kv)
            case "read page":
                return ProgramTrees((kv, 0), page)
            case "write page":
                return ProgramTrees((kv, 0, page), kv)
        raise KeyError(key)
