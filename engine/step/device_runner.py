"""The runner of a real model: it dispatches plans to the device and fetches their tokens."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cache.storage import KVLayout
from engine.backends.base.backend import Backends
from engine.interface.config import TILE_SIZE
from engine.interface.types import Progress
from engine.models.parts.model import Model
from engine.parallel.placement import Kind, OneDevice, Placement, shapes_of
from engine.schedule.request import Request
from engine.schedule.sequence_buffer import SequenceBuffer
from engine.schedule.step_plan import StepPlan, StepResult
from engine.step.batch import StepBatch
from engine.step.compiled import CompiledPrograms
from engine.step.feature_writes import FeatureWrite, any_row, writes_of
from engine.step.grammar_masks import allocate_masks
from engine.step.inputs import InputBuilder, StepInputs
from engine.step.jax_cache import cache_passed_by
from engine.step.kept_programs import KeptPrograms, described, environment
from engine.step.page_copies import PageBits, num_bytes, read_page, to_device, to_host, write_page
from engine.step.page_memory import PageMemory
from engine.step.program_trees import StepArrays
from engine.step.programs import decode_chunk, forward, forward_prompt, pool_tile, score_tile
from engine.step.runner import PendingStep
from engine.step.shapes import ShapeTable, StepShape
from engine.weights.host_memory import give_back_freed, large_array
from engine.weights.layout import Params
from sampling.host.rows import SamplerVariant, SamplingRows
from sampling.logprobs import TOKEN
from sampling.processors.feature import StateShape
from sampling.sampler import sample, sample_full
from sampling.state import Slots, state_shapes, write_row

# What programs take first.
_TAKES_BATCH = (Kind.PARAMS, Kind.PAGES, Kind.SAME, Kind.SAME)
_TAKES_HIDDEN = (Kind.PARAMS, Kind.SAME, Kind.SAME, Kind.SAME)

_ANY_PAGE = np.int32(0)


class DeviceRunner:
    """Owns the weights, the pages, the slots and the compiled programs of one model."""

    def __init__(
        self, params: Params, model: Model, backends: Backends, layout: KVLayout,
        buffer: SequenceBuffer, table: ShapeTable, decode_chunk: int = 1, *,
        placement: Placement | None = None, store: Path | None = None, copies_pages: bool = False,
    ) -> None:  # fmt: skip
        """
        Args:
            placement: by default one device.
            store: the folder of a `ProgramStore` in which the programs are kept ready to run; None: nowhere.
            copies_pages: whether `read_page` and `write_page` will be called.
        """
        self._params = params
        self.model = model
        self._placement = placement = placement or OneDevice()
        self._local_model = placement.model(model)
        self.backends = backends
        self._buffer = buffer
        self.max_pages_per_request = buffer.page_table.shape[1]
        self._table = table
        self._inputs = InputBuilder(buffer, table)
        self._decode_chunk = decode_chunk
        self._layout = layout
        self._is_on_host = jax.default_backend() == "cpu"
        self._page_memory: PageMemory | None = None  # None: closed, or the device has its own, or there are several
        self._kv = placement.allocate(layout, backends.empty)
        self._copies_pages = copies_pages
        self._page_shapes: tuple[jax.ShapeDtypeStruct, ...] = jax.eval_shape(read_page, self._kv, _ANY_PAGE)
        self.page_bytes = num_bytes(self._page_shapes)
        self._slots = placement.put(Slots.zeros(buffer.num_slots))
        self.state_shape = StateShape(buffer.num_slots, model.config.vocab_size, buffer.token_ids.shape[1])
        self._states = placement.put(backends.empty(state_shapes(self.state_shape)))
        # By number of rows: the masks that steps of SamplerVariant.FULL without a grammar pass. Nothing reads them.
        self._no_masks: dict[int, jax.Array] = {}
        self._programs = CompiledPrograms()
        self._store = store
        self.start()  # last: where anything before it fails, nobody could close the runner

    def compile(self, progress: Progress) -> None:
        """Compiles the programs of every shape from abstract shapes, or finds those of an earlier start."""
        lowerings: dict[Hashable, Callable[[], jax.stages.Lowered]] = {}
        for shape in self._table.all():
            lowerings["forward", shape] = partial(self._lower_forward, shape)
        for num_rows in self._table.row_buckets:
            for level in (SamplerVariant.GREEDY, SamplerVariant.RANDOM):
                lowerings["sample", num_rows, level] = partial(self._lower_sample, num_rows, level)
                if self._decode_chunk > 1:
                    lowerings["chunk", num_rows, level] = partial(self._lower_chunk, num_rows, level)
            lowerings["sample", num_rows, SamplerVariant.FULL] = partial(self._lower_sample_full, num_rows)
            self._no_masks[num_rows] = self._placement.put(jax.device_put(self._masks_of(num_rows)))
        for name in self._states:
            lowerings["write", name] = partial(self._lower_write, name)
        lowerings["score"] = self._lower_score
        lowerings["pool"] = self._lower_pool
        if self._copies_pages:
            lowerings["read page"] = partial(jax.jit(read_page).lower, self._abstract(self._kv), _ANY_PAGE)
            write = jax.jit(write_page, donate_argnums=0)
            lowerings["write page"] = partial(write.lower, self._abstract(self._kv), _ANY_PAGE, self._page_shapes)
        # Those of an earlier start are loaded in this order, and a request may come at once.
        lowerings = {key: lowerings[key] for key in (*self._first_needed(), *lowerings)}
        # JAX loads a kept program for all devices that there are, and an engine uses one of them.
        kept = None if self._store is None or jax.device_count() > 1 else self._kept_programs(self._store)
        with nullcontext() if kept is None else cache_passed_by():
            self._programs.compile(lowerings, progress, kept)

    def _first_needed(self) -> Iterator[Hashable]:
        """The keys of the programs that a first request needs: alone, with a short prompt and plain sampling."""
        for shape in (self._table.fit(0, 1), self._table.fit(1, 0)):
            num_rows = self._table.num_sampled_rows(shape)
            yield "forward", shape
            for level in (SamplerVariant.RANDOM, SamplerVariant.GREEDY):
                yield "sample", num_rows, level
                if self._decode_chunk > 1 and shape.num_tiles == 0:
                    yield "chunk", num_rows, level

    def _kept_programs(self, store: Path) -> KeptPrograms:
        module = type(self.model).__module__
        parts = (
            module, self.model, self.backends.for_products.name, self.backends.for_attention.name, self.backends.detail,
            self._layout, self._table, self._decode_chunk, self.state_shape, self._buffer.page_table.shape,
            self._copies_pages,
        )  # fmt: skip
        arrays = shapes_of(StepArrays(self._params, self._kv, self._slots, self._states))
        return KeptPrograms(store, f"{parts!r} {described(arrays)} {environment([module])}", arrays.trees_of)

    def _lower_forward(self, shape: StepShape) -> jax.stages.Lowered:
        num_sampled = self._table.num_sampled_rows(shape)
        batch = StepBatch.padding(shape, num_sampled, self.max_pages_per_request)
        body = self._forward_prompt if shape.num_tiles else self._forward
        program = jax.jit(body, donate_argnums=1)
        return program.lower(*map(self._abstract, (self._params, self._kv, self._slots, batch)))

    def _lower_sample(self, num_rows: int, level: SamplerVariant) -> jax.stages.Lowered:
        logits = self._placement.abstract_array((num_rows, self.model.config.vocab_size), jnp.float32)
        rows = SamplingRows.padding(num_rows, self._buffer.num_slots)
        body = partial(sample, all_greedy=level is SamplerVariant.GREEDY, body=self.backends.sampler)
        return jax.jit(body, donate_argnums=1).lower(logits, self._abstract(self._slots), self._abstract(rows))

    def _lower_sample_full(self, num_rows: int) -> jax.stages.Lowered:
        logits = self._placement.abstract_array((num_rows, self.model.config.vocab_size), jnp.float32)
        rows = SamplingRows.padding(num_rows, self._buffer.num_slots)
        program = jax.jit(partial(sample_full, body=self.backends.sampler), donate_argnums=(1, 2))
        return program.lower(logits, *map(self._abstract, (self._slots, self._states, rows, self._masks_of(num_rows))))

    def _lower_write(self, name: str) -> jax.stages.Lowered:
        row = any_row(name, self.state_shape)
        program = jax.jit(write_row, donate_argnums=0)
        return program.lower(*map(self._abstract, (self._states[name], np.int32(0), row)))

    @property
    def _forward(self) -> Callable[..., Any]:
        return self._placement.spread(self._of_model(forward), _TAKES_BATCH, (Kind.SAME, Kind.PAGES))

    @property
    def _forward_prompt(self) -> Callable[..., Any]:
        body = self._of_model(forward_prompt, max_num_tiles=self._table.max_num_tiles)
        return self._placement.spread(body, _TAKES_BATCH, (Kind.SAME, Kind.PAGES, Kind.SAME))

    def _of_model(self, body: Callable[..., Any], **constants: Any) -> Callable[..., Any]:
        return partial(body, model=self._local_model, backends=self.backends, **constants)

    def _lower_pool(self) -> jax.stages.Lowered:
        tokens, shares = np.zeros(TILE_SIZE, np.int32), np.zeros(TILE_SIZE, np.float32)
        body = partial(pool_tile, model=self._local_model)
        program = jax.jit(self._placement.spread(body, _TAKES_HIDDEN, (Kind.SAME,)))
        return program.lower(*map(self._abstract, (self._params, self._hidden_of_tiles(), tokens, shares)))

    def _hidden_of_tiles(self) -> jax.ShapeDtypeStruct:
        """What `forward_prompt` returns of the tokens in tiles."""
        batch = StepBatch.padding(StepShape(0, 1), 1, self.max_pages_per_request)
        _, _, hidden = jax.eval_shape(self._forward_prompt, self._params, self._kv, self._slots, batch)
        return self._placement.abstract_array(hidden.shape, hidden.dtype)

    def _lower_score(self) -> jax.stages.Lowered:
        hidden = self._hidden_of_tiles()
        tokens = np.zeros(TILE_SIZE, np.int32)
        program = jax.jit(self._placement.spread(self._of_model(score_tile), _TAKES_HIDDEN, (Kind.SAME,)))
        return program.lower(*map(self._abstract, (self._params, hidden, tokens, tokens)))

    def _masks_of(self, num_rows: int) -> np.ndarray:
        return allocate_masks(num_rows, self.state_shape.num_words)

    def _lower_chunk(self, num_rows: int, level: SamplerVariant) -> jax.stages.Lowered:
        batch = StepBatch.padding(StepShape(num_rows, 0), num_rows, self.max_pages_per_request)
        rows = SamplingRows.padding(num_rows, self._buffer.num_slots)
        chunk = self._placement.spread(
            self._of_model(decode_chunk, num_repeats=self._decode_chunk, all_greedy=level is SamplerVariant.GREEDY),
            (*_TAKES_BATCH, Kind.SAME), (Kind.PAGES, Kind.SAME, Kind.SAME),
        )  # fmt: skip
        program = jax.jit(chunk, donate_argnums=(1, 2))
        return program.lower(*map(self._abstract, (self._params, self._kv, self._slots, batch, rows)))

    def _abstract(self, tree: Any) -> Any:
        return self._placement.abstract(tree)

    def sleep(self, *, drop_weights: bool) -> None:
        """Frees the memory of the pages; with `drop_weights`, also moves the weights to host memory."""
        self._free_pages()
        if drop_weights:
            host = jax.tree.map(_host_copy, self._params)
            for leaf in jax.tree.leaves(self._params):
                leaf.delete()
            self._params = host

    def forget_weights(self) -> None:
        """Frees the memory of the weights, of which only shapes and formats are kept; they must be given anew."""
        arrays = [leaf for leaf in jax.tree.leaves(self._params) if isinstance(leaf, jax.Array)]
        self._params = shapes_of(self._params)
        for array in arrays:
            array.delete()
        del arrays
        # On a CPU the arrays lie in numpy's memory, which JAX lets go of in a callback of the garbage collector. The
        # youngest generation is enough, and takes no time.
        gc.collect(0)
        give_back_freed()

    @property
    def has_weights(self) -> bool:
        """Whether they are in memory, of the device or of the host."""
        return not any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(self._params))

    def wake(self) -> None:
        """Undoes `sleep`; the content of the pages is lost. The weights must not be forgotten.

        Where it fails, the pages have no memory and the weights lie where they lay.
        """
        self._free_pages()  # there are some on a host that has woken while the leader could not tell all hosts to
        try:
            self._kv = self._placement.allocate(self._layout, self.backends.empty)
            self.start()
            self._params = self._placement.put_params(self._params)
        except BaseException:
            self._free_pages()
            raise

    def start(self) -> None:
        """Begins what runs beside the steps, if it does not run; nothing may be in flight."""
        self._programs.start()
        has_pages = not self._kv.data.is_deleted()  # they have not, while the engine sleeps
        if self._page_memory is None and has_pages and self._is_on_host and isinstance(self._placement, OneDevice):
            # Programs that are loaded need new memory many times, and each time they would wait for that of the pages.
            self._page_memory = PageMemory(self._kv, self._programs.are_loaded.wait)

    def close(self) -> None:
        """Ends what runs beside the steps; `start` or `wake` may begin it anew. Idempotent; never raises."""
        self._programs.close()
        memory, self._page_memory = self._page_memory, None
        if memory is not None:
            memory.close()

    def reach(self, num_pages: int) -> None:
        """Takes note that so many pages, from the first on, are in use or have been since they were allocated."""
        memory = self._page_memory  # another thread may close it
        if memory is not None:
            memory.reach(num_pages)

    def _free_pages(self) -> None:
        self.close()
        for leaf in jax.tree.leaves(self._kv):
            leaf.delete()

    def accepts(self, params: Params) -> bool:
        """Whether the compiled programs accept these weights, because all shapes and formats are the same."""
        return bool(shapes_of(params) == shapes_of(self._params))

    def replace_params(self, params: Params) -> None:
        """Replaces the weights by others that `accepts` has accepted."""
        self._params = params

    def dispatch(self, plan: StepPlan) -> PendingStep:
        """Builds the input arrays of the step and enqueues it."""
        return self.enqueue(plan, self.build(plan))

    def build(self, plan: StepPlan) -> StepInputs:
        """Builds the input arrays of a step. Steps must be enqueued in the order in which they are built."""
        return self._inputs.build(plan)

    def enqueue(self, plan: StepPlan, inputs: StepInputs) -> PendingStep:
        """Enqueues the programs of a built step; for a step that awaits masks, the forward pass alone."""
        writes = [write for request in inputs.admitted for write in writes_of(request, self.state_shape)]
        return self.launch(plan, inputs, writes)

    def launch(self, plan: StepPlan, inputs: StepInputs, writes: Sequence[FeatureWrite]) -> PendingStep:
        """As `enqueue`, with the writes that `inputs.admitted` asks for."""
        pending = PendingStep(plan, inputs)
        for name, slot, row in writes:
            state = self._programs["write", name](self._states[name], np.int32(slot), row)
            self._states = {**self._states, name: state}
        if inputs.num_repeats > 1:
            chunk = self._programs["chunk", inputs.shape.num_rows, inputs.level]
            self._kv, self._slots, pending.out = chunk(
                self._params, self._kv, self._slots, inputs.batch, inputs.sampling
            )
            self._start_copy(pending.out)
            return pending
        outputs = self._programs["forward", inputs.shape](self._params, self._kv, self._slots, inputs.batch)
        pending.logits, self._kv = outputs[:2]
        for tile in inputs.scored:
            score = self._programs["score"](self._params, outputs[2], tile.hidden, tile.following)
            self._start_copy(score)
            pending.scores.append(score)
        for pooled_tile in inputs.pooled:
            piece = self._programs["pool"](self._params, outputs[2], pooled_tile.hidden, pooled_tile.shares)
            self._start_copy(piece)
            pending.pooled.append(piece)
        if not inputs.awaits_masks:
            self.sample(pending, self._no_masks[len(inputs.batch.sampled)])
        return pending

    def new_masks(self, pending: PendingStep) -> np.ndarray:
        """Makes masks that allow nothing, uint32[num_rows, num_words]."""
        return self._masks_of(len(pending.inputs.batch.sampled))

    def sample(self, pending: PendingStep, masks: np.ndarray | jax.Array) -> None:
        """Enqueues the sampling of a step and starts the copy of its tokens to the host."""
        inputs = pending.inputs
        program = self._programs["sample", len(inputs.batch.sampled), inputs.level]
        if inputs.level is SamplerVariant.FULL:
            self._slots, self._states, pending.out = program(
                pending.logits, self._slots, self._states, inputs.sampling, masks
            )
        else:
            self._slots, pending.out = program(pending.logits, self._slots, inputs.sampling)
        pending.logits = None
        self._start_copy(pending.out)

    def _start_copy(self, output: jax.Array) -> None:
        """Lets the host have an output as soon as it is computed. Where the device is the host, it has it anyway."""
        if not self._is_on_host:
            output.copy_to_host_async()

    def result(self, pending: PendingStep) -> StepResult:
        """Waits for the tokens of the step, without holding the interpreter lock."""
        inputs, out = pending.inputs, np.asarray(pending.out)
        prompt_logprobs: dict[Request, np.ndarray] = {}
        for tile, score in zip(inputs.scored, pending.scores, strict=True):
            piece = np.asarray(score)[: tile.num_tokens]
            before = prompt_logprobs.get(tile.request)
            prompt_logprobs[tile.request] = piece if before is None else np.concatenate([before, piece])
        pooled: dict[Request, np.ndarray] = {}
        for pooled_tile, added in zip(inputs.pooled, pending.pooled, strict=True):
            pooled[pooled_tile.request] = pooled.get(pooled_tile.request, np.float32(0)) + np.asarray(added)
        if inputs.level is SamplerVariant.FULL:
            out = out[: inputs.num_sampled]
            return StepResult(out[:, TOKEN].tolist(), out, prompt_logprobs, pooled)
        return StepResult(out[..., : inputs.num_sampled].ravel().tolist(), None, prompt_logprobs, pooled)

    def read_page(self, page_id: int) -> PageBits:
        """Enqueues a copy of a page as it is behind all steps dispatched so far."""
        page: PageBits = self._programs["read page"](self._kv, np.int32(page_id))
        for leaf in page:
            leaf.copy_to_host_async()
        return page

    def write_page(self, page_id: int, page: PageBits) -> None:
        """Enqueues the writing of a page, before all steps that are dispatched later."""
        self._kv = self._programs["write page"](self._kv, np.int32(page_id), page)

    def to_host(self, page: PageBits) -> list[np.ndarray]:
        """Waits for the copy of a page; any thread may call it."""
        return to_host(page)

    def to_device(self, content: np.ndarray) -> PageBits:
        """Makes a page of its content, uint8[page_bytes]; any thread may call it."""
        return to_device(content, self._page_shapes)

    def is_done(self, pending: PendingStep) -> bool:
        """Whether the device has computed the tokens of the step; does not wait."""
        if pending.out is None:
            return False
        is_done: bool = pending.out.is_ready()  # type: ignore[attr-defined]  # missing in jax's stub of Array
        return is_done


def _host_copy(leaf: jax.Array) -> np.ndarray:
    """Copies a device array to host memory that `device_put` can take back.

    On CPU a view would keep the memory of the device alive, or read it after it is freed.
    """
    copy = large_array(leaf.shape, leaf.dtype)
    np.copyto(copy, np.asarray(leaf))
    return copy
