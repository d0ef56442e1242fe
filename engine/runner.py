"""Hands plans to the device and fetches their tokens."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from cache.storage import KVLayout
from engine.backends import Backends
from engine.batch import HostStep, StepBatch, build_step
from engine.compiled import CompiledPrograms
from engine.host_memory import large_array
from engine.models import llama
from engine.plan import StepPlan
from engine.sequence_buffer import SequenceBuffer
from engine.shapes import ShapeTable, StepShape
from engine.step import decode_chunk, forward
from engine.types import Progress
from sampling.rows import SamplingRows
from sampling.sampler import sample
from sampling.slots import Slots

Tree = TypeVar("Tree")


class PendingStep(NamedTuple):
    """A dispatched step: its plan, and its tokens on their way to the host."""

    plan: StepPlan
    out: jax.Array  # int32[num_sampled_rows], or [num_repeats, num_sampled_rows]; an output of its own, never donated
    num_sampled: int


class Runner(Protocol):
    """What the loop needs of whatever computes steps."""

    def dispatch(self, plan: StepPlan) -> PendingStep:
        """Enqueues the step and returns without waiting for it."""

    def result(self, pending: PendingStep) -> list[int]:
        """Waits for the step; one token for each of its sampled rows, in the plan's order, repeat after repeat."""

    def is_done(self, pending: PendingStep) -> bool:
        """Whether the device has finished the step; does not wait."""


class DeviceRunner:
    """The runner of a real model."""

    def __init__(
        self, params: llama.LlamaParams, config: llama.LlamaConfig, backends: Backends, layout: KVLayout,
        buffer: SequenceBuffer, table: ShapeTable, decode_chunk: int = 1,
    ) -> None:  # fmt: skip
        self._params = params
        self.config = config
        self.backends = backends
        self._buffer = buffer
        self._table = table
        self._decode_chunk = decode_chunk
        self._layout = layout
        self._kv = layout.allocate(empty=backends.empty)
        self._slots = Slots.zeros(buffer.num_slots)
        self._programs = CompiledPrograms()

    def compile(self, progress: Progress) -> None:
        """Compiles every shape, ahead of time and from abstract shapes."""
        lowerings: dict[Hashable, Callable[[], jax.stages.Lowered]] = {}
        for shape in self._table.all():
            lowerings["forward", shape] = partial(self._lower_forward, shape)
        for num_rows in self._table.row_buckets:
            for all_greedy in (True, False):
                lowerings["sample", num_rows, all_greedy] = partial(self._lower_sample, num_rows, all_greedy)
                if self._decode_chunk > 1:
                    lowerings["chunk", num_rows, all_greedy] = partial(self._lower_chunk, num_rows, all_greedy)
        self._programs.compile(lowerings, progress)

    def _lower_forward(self, shape: StepShape) -> jax.stages.Lowered:
        num_sampled = self._table.num_sampled_rows(shape)
        batch = StepBatch.padding(shape, num_sampled, self._buffer.page_table.shape[1])
        program = jax.jit(partial(forward, config=self.config, backends=self.backends), donate_argnums=1)
        return program.lower(*map(_abstract, (self._params, self._kv, self._slots, batch)))

    def _lower_sample(self, num_rows: int, all_greedy: bool) -> jax.stages.Lowered:
        logits = jax.ShapeDtypeStruct((num_rows, self.config.vocab_size), jnp.float32)
        rows = SamplingRows.padding(num_rows, self._buffer.num_slots)
        program = jax.jit(partial(sample, all_greedy=all_greedy, greedy=self.backends.greedy), donate_argnums=1)
        return program.lower(logits, _abstract(self._slots), _abstract(rows))

    def _lower_chunk(self, num_rows: int, all_greedy: bool) -> jax.stages.Lowered:
        batch = StepBatch.padding(StepShape(num_rows, 0), num_rows, self._buffer.page_table.shape[1])
        rows = SamplingRows.padding(num_rows, self._buffer.num_slots)
        chunk = partial(
            decode_chunk, config=self.config, backends=self.backends,
            num_repeats=self._decode_chunk, all_greedy=all_greedy,
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
        self._kv = self._layout.allocate(empty=self.backends.empty)
        self._params = jax.tree.map(jax.device_put, self._params)  # of a host array jnp.asarray compiles a program

    def accepts(self, params: llama.LlamaParams) -> bool:
        """Whether the compiled programs take these weights: they have the same shapes and formats."""
        return bool(_abstract(params) == _abstract(self._params))

    def replace_params(self, params: llama.LlamaParams) -> None:
        """Takes other weights of the same shapes."""
        self._params = params

    def dispatch(self, plan: StepPlan) -> PendingStep:
        """Builds the step's arrays and enqueues it."""
        return self.enqueue(plan, self.build(plan))

    def build(self, plan: StepPlan) -> HostStep:
        """The step's input arrays; plans are built in the order in which they are enqueued."""
        return build_step(plan, self._buffer, self._table)

    def enqueue(self, plan: StepPlan, step: HostStep) -> PendingStep:
        """Enqueues the programs of a built step and starts the copy of its tokens to the host."""
        if step.num_repeats > 1:
            chunk = self._programs["chunk", step.shape.num_rows, step.all_greedy]
            self._kv, self._slots, out = chunk(self._params, self._kv, self._slots, step.batch, step.sampling)
        else:
            logits, self._kv = self._programs["forward", step.shape](self._params, self._kv, self._slots, step.batch)
            program = self._programs["sample", len(step.batch.sampled), step.all_greedy]
            self._slots, out = program(logits, self._slots, step.sampling)
        out.copy_to_host_async()
        return PendingStep(plan, out, step.num_sampled)

    def result(self, pending: PendingStep) -> list[int]:
        """Waits for the step's tokens, outside the interpreter lock."""
        tokens: list[int] = np.asarray(pending.out)[..., : pending.num_sampled].ravel().tolist()
        return tokens

    def is_done(self, pending: PendingStep) -> bool:
        """Whether the step's tokens are computed."""
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
