"""Hands plans to the device and fetches their tokens."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from cache.storage import KVLayout
from engine.border.config import TILE_SIZE
from engine.border.types import Progress
from engine.kernels.interface.body import Bodies
from engine.models.model import Model
from engine.schedule.plan import StepPlan
from engine.schedule.request import Request
from engine.schedule.sequence_buffer import SequenceBuffer
from engine.schedule.step_result import StepResult
from engine.step.batch import HostStep, StepBatch, build_step
from engine.step.compiled import CompiledPrograms
from engine.step.pending_step import PendingStep
from engine.step.programs import decode_chunk, forward, forward_prompt, score_tile
from engine.step.shapes import ShapeTable, StepShape
from engine.weights.host_memory import large_array
from engine.weights.layout import Params
from sampling.host.params import SamplingParams
from sampling.host.rows import Level, SamplingRows
from sampling.host.usage import used_features
from sampling.logprobs import TOKEN
from sampling.processors.feature import Admission, StateShape
from sampling.sampler import sample, sample_full
from sampling.state import FEATURES, FeatureStates, Slots, row_of, write_row

Tree = TypeVar("Tree")

_ANY_PARAMS = SamplingParams(allowed_token_ids=(0,))  # of which every feature makes a row


class Runner(Protocol):
    """What the loop needs of whatever computes steps."""

    def dispatch(self, plan: StepPlan) -> PendingStep:
        """Enqueues the step and returns without waiting for it.

        Of a step that awaits masks it enqueues the forward pass alone.
        """

    def new_masks(self, pending: PendingStep) -> np.ndarray:
        """Masks that allow nothing, uint32[num_rows, num_words]; the first rows are those that sample."""

    def sample(self, pending: PendingStep, masks: np.ndarray) -> None:
        """Enqueues the sampling of a step that awaited masks, which from now on belong to the device."""

    def result(self, pending: PendingStep) -> StepResult:
        """Waits for the step."""

    def is_done(self, pending: PendingStep) -> bool:
        """Whether the device has finished the step; does not wait."""


class DeviceRunner:
    """The runner of a real model."""

    def __init__(
        self, params: Params, model: Model, bodies: Bodies, layout: KVLayout,
        buffer: SequenceBuffer, table: ShapeTable, decode_chunk: int = 1,
    ) -> None:  # fmt: skip
        self._params = params
        self.model = model
        self.bodies = bodies
        self._buffer = buffer
        self._table = table
        self._decode_chunk = decode_chunk
        self._layout = layout
        self._kv = layout.allocate(empty=bodies.empty)
        self._slots = Slots.zeros(buffer.num_slots)
        self._state_shape = StateShape(buffer.num_slots, model.config.vocab_size, buffer.token_ids.shape[1])
        self._states = FeatureStates.allocate(self._state_shape, bodies.empty)
        # Of steps of Level.FULL without grammars, by their rows: nothing reads them.
        self._no_masks: dict[int, jax.Array] = {}
        self._programs = CompiledPrograms()

    def compile(self, progress: Progress) -> None:
        """Compiles every shape, ahead of time and from abstract shapes."""
        lowerings: dict[Hashable, Callable[[], jax.stages.Lowered]] = {}
        for shape in self._table.all():
            lowerings["forward", shape] = partial(self._lower_forward, shape)
        for num_rows in self._table.row_buckets:
            for level in (Level.GREEDY, Level.RANDOM):
                lowerings["sample", num_rows, level] = partial(self._lower_sample, num_rows, level)
                if self._decode_chunk > 1:
                    lowerings["chunk", num_rows, level] = partial(self._lower_chunk, num_rows, level)
            lowerings["sample", num_rows, Level.FULL] = partial(self._lower_sample_full, num_rows)
            self._no_masks[num_rows] = jax.device_put(self._masks_of(num_rows))
        for name in FEATURES:
            lowerings["write", name] = partial(self._lower_write, name)
        lowerings["score"] = self._lower_score
        self._programs.compile(lowerings, progress)

    def _lower_forward(self, shape: StepShape) -> jax.stages.Lowered:
        num_sampled = self._table.num_sampled_rows(shape)
        batch = StepBatch.padding(shape, num_sampled, self._buffer.page_table.shape[1])
        body = self._forward_prompt if shape.num_tiles else partial(forward, model=self.model, bodies=self.bodies)
        program = jax.jit(body, donate_argnums=1)
        return program.lower(*map(_abstract, (self._params, self._kv, self._slots, batch)))

    def _lower_sample(self, num_rows: int, level: Level) -> jax.stages.Lowered:
        logits = jax.ShapeDtypeStruct((num_rows, self.model.config.vocab_size), jnp.float32)
        rows = SamplingRows.padding(num_rows, self._buffer.num_slots)
        body = partial(sample, all_greedy=level is Level.GREEDY, body=self.bodies.sampler)
        return jax.jit(body, donate_argnums=1).lower(logits, _abstract(self._slots), _abstract(rows))

    def _lower_sample_full(self, num_rows: int) -> jax.stages.Lowered:
        logits = jax.ShapeDtypeStruct((num_rows, self.model.config.vocab_size), jnp.float32)
        rows = SamplingRows.padding(num_rows, self._buffer.num_slots)
        program = jax.jit(partial(sample_full, body=self.bodies.sampler), donate_argnums=(1, 2))
        return program.lower(logits, *map(_abstract, (self._slots, self._states, rows, self._masks_of(num_rows))))

    def _lower_write(self, name: str) -> jax.stages.Lowered:
        nothing = Admission(_ANY_PARAMS, np.zeros(1, np.int32), 1, frozenset())
        row = row_of(name, nothing, self._state_shape)
        program = jax.jit(write_row, donate_argnums=0)
        return program.lower(*map(_abstract, (getattr(self._states, name), np.int32(0), row)))

    @property
    def _forward_prompt(self) -> Callable[..., Any]:
        return partial(forward_prompt, model=self.model, bodies=self.bodies, max_num_tiles=self._table.max_num_tiles)

    def _lower_score(self) -> jax.stages.Lowered:
        batch = StepBatch.padding(StepShape(0, 1), 1, self._buffer.page_table.shape[1])
        _, _, hidden = jax.eval_shape(self._forward_prompt, self._params, self._kv, self._slots, batch)
        tokens = np.zeros(TILE_SIZE, np.int32)
        program = jax.jit(partial(score_tile, model=self.model, bodies=self.bodies))
        return program.lower(*map(_abstract, (self._params, hidden, tokens, tokens)))

    def _masks_of(self, num_rows: int) -> np.ndarray:
        return np.zeros((num_rows, self._state_shape.num_words), np.uint32)

    def _lower_chunk(self, num_rows: int, level: Level) -> jax.stages.Lowered:
        batch = StepBatch.padding(StepShape(num_rows, 0), num_rows, self._buffer.page_table.shape[1])
        rows = SamplingRows.padding(num_rows, self._buffer.num_slots)
        chunk = partial(
            decode_chunk, model=self.model, bodies=self.bodies,
            num_repeats=self._decode_chunk, all_greedy=level is Level.GREEDY,
        )  # fmt: skip
        program = jax.jit(chunk, donate_argnums=(1, 2))
        return program.lower(*map(_abstract, (self._params, self._kv, self._slots, batch, rows)))

    def sleep(self, *, drop_weights: bool) -> None:
        """Gives the pages' memory back, and with `drop_weights` keeps the weights in host memory alone."""
        for leaf in jax.tree.leaves(self._kv):
            leaf.delete()
        if drop_weights:
            host = jax.tree.map(_host_copy, self._params)
            for leaf in jax.tree.leaves(self._params):
                leaf.delete()
            self._params = host

    def wake(self) -> None:
        """Undoes `sleep`; the pages are empty."""
        self._kv = self._layout.allocate(empty=self.bodies.empty)
        self._params = jax.tree.map(jax.device_put, self._params)  # of a host array jnp.asarray compiles a program

    def accepts(self, params: Params) -> bool:
        """Whether the compiled programs take these weights: they have the same shapes and formats."""
        return bool(_abstract(params) == _abstract(self._params))

    def replace_params(self, params: Params) -> None:
        """Takes other weights of the same shapes."""
        self._params = params

    def dispatch(self, plan: StepPlan) -> PendingStep:
        """Builds the step's arrays and enqueues it."""
        return self.enqueue(plan, self.build(plan))

    def build(self, plan: StepPlan) -> HostStep:
        """The step's input arrays; plans are built in the order in which they are enqueued."""
        return build_step(plan, self._buffer, self._table)

    def enqueue(self, plan: StepPlan, step: HostStep) -> PendingStep:
        """Enqueues the programs of a built step, of one that awaits masks the forward pass alone."""
        pending = PendingStep(plan, step)
        for request in step.admitted:
            self._write_features(request)
        if step.num_repeats > 1:
            chunk = self._programs["chunk", step.shape.num_rows, step.level]
            self._kv, self._slots, pending.out = chunk(self._params, self._kv, self._slots, step.batch, step.sampling)
            pending.out.copy_to_host_async()
            return pending
        outputs = self._programs["forward", step.shape](self._params, self._kv, self._slots, step.batch)
        pending.logits, self._kv = outputs[:2]
        for tile in step.scored:
            score = self._programs["score"](self._params, outputs[2], tile.hidden, tile.following)
            score.copy_to_host_async()
            pending.scores.append(score)
        if not step.awaits_masks:
            self.sample(pending, self._no_masks[len(step.batch.sampled)])
        return pending

    def new_masks(self, pending: PendingStep) -> np.ndarray:
        """Masks that allow nothing, uint32[num_rows, num_words]."""
        return self._masks_of(len(pending.step.batch.sampled))

    def sample(self, pending: PendingStep, masks: np.ndarray | jax.Array) -> None:
        """Enqueues the sampling of a step and starts the copy of its tokens to the host."""
        step = pending.step
        program = self._programs["sample", len(step.batch.sampled), step.level]
        if step.level is Level.FULL:
            self._slots, self._states, pending.out = program(
                pending.logits, self._slots, self._states, step.sampling, masks
            )
        else:
            self._slots, pending.out = program(pending.logits, self._slots, step.sampling)
        pending.logits = None
        pending.out.copy_to_host_async()

    def _write_features(self, request: Request) -> None:
        """Writes what the request's features keep into its slot on the device, behind all steps before this one."""
        token_ids = np.array(request.token_ids, np.int32)
        admission = Admission(request.params, token_ids, request.num_prompt_tokens, request.stop_ids)
        for name in used_features(request.params):
            row = row_of(name, admission, self._state_shape)
            state = self._programs["write", name](getattr(self._states, name), np.int32(request.slot), row)
            self._states = self._states._replace(**{name: state})

    def result(self, pending: PendingStep) -> StepResult:
        """Waits for the step's tokens, outside the interpreter lock."""
        step, out = pending.step, np.asarray(pending.out)
        prompt_logprobs: dict[Request, np.ndarray] = {}
        for tile, score in zip(step.scored, pending.scores, strict=True):
            piece = np.asarray(score)[: tile.num_tokens]
            before = prompt_logprobs.get(tile.request)
            prompt_logprobs[tile.request] = piece if before is None else np.concatenate([before, piece])
        if step.level is Level.FULL:
            out = out[: step.num_sampled]
            return StepResult(out[:, TOKEN].tolist(), out, prompt_logprobs)
        return StepResult(out[..., : step.num_sampled].ravel().tolist(), None, prompt_logprobs)

    def is_done(self, pending: PendingStep) -> bool:
        """Whether the step's tokens are computed."""
        if pending.out is None:
            return False
        is_done: bool = pending.out.is_ready()  # type: ignore[attr-defined]  # jax's stub of Array leaves it out
        return is_done


def _host_copy(leaf: jax.Array) -> np.ndarray:
    """On CPU a mere view would keep the device's memory, or read it after it is freed; this the device takes back."""
    copy = large_array(leaf.shape, leaf.dtype)
    np.copyto(copy, np.asarray(leaf))
    return copy


def _abstract(tree: Tree) -> Tree:
    """The same tree with shapes in place of arrays."""
    mapped: Tree = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
    return mapped
