"""A device whose steps take a given time and no processor, so that the host's own work can be measured.

The host pays what a real step costs it: the same code builds the same arrays and calls two compiled
programs with as many arguments as a real model's. Only the programs compute next to nothing.

The device's time is reckoned, not played by a thread: a Python thread needs the interpreter lock to
begin its next step, and no device does. A step starts when it is enqueued or when the step before it
ends, whichever is later; `result` sleeps, without the lock, until the step has ended.
"""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np

from cache.pool import PagePool
from cache.storage import KVLayout
from engine.attention import PAGES_PER_BLOCK
from engine.batch import HostStep, StepBatch
from engine.compiled import CompileCounter
from engine.config import EngineConfig, ModelInfo
from engine.engine import Engine
from engine.models.llama import LlamaConfig, LlamaLayers, LlamaParams
from engine.plan import StepPlan
from engine.runner import DeviceRunner, PendingStep
from engine.scheduler import Scheduler
from engine.sequence_buffer import SequenceBuffer
from engine.shapes import TILE_SIZE, ShapeTable, StepShape
from sampling.rows import POSITION, SEED_LOW, SamplingRows
from sampling.slots import Slots

VOCAB_SIZE = 49152
STEP_SECONDS = 0.005
MAX_MODEL_LEN = 2048


class DeviceClock:
    """When a device that computes steps in order is busy, and when it stands idle."""

    def __init__(self, step_seconds: float) -> None:
        self.step_seconds = step_seconds
        self.num_steps = 0
        self.idle_seconds = 0.0  # between steps: from the end of one to the start of the next
        self._end: float | None = None  # of the last step

    def enqueue(self, now: float) -> float:
        """A step is enqueued at `now`, in seconds.

        Returns:
            When it will have ended.
        """
        if self._end is None:
            self._end = now
        self.idle_seconds += max(0.0, now - self._end)
        self._end = max(now, self._end) + self.step_seconds
        self.num_steps += 1
        return self._end


class SimulatedRunner(DeviceRunner):
    """The runner of a model that takes its time and computes nothing.

    Its tokens are a cheap function of a row's seed and position, so a request's output depends on
    nothing else, as a real one's must not.
    """

    def __init__(self, buffer: SequenceBuffer, table: ShapeTable, step_seconds: float) -> None:
        config = LlamaConfig(
            vocab_size=VOCAB_SIZE, hidden_size=1, intermediate_size=1, num_layers=1, num_heads=1, num_kv_heads=1,
            head_dim=1, context_length=MAX_MODEL_LEN, rope_theta=1.0, rms_norm_eps=1.0,
        )  # fmt: skip
        layout = KVLayout(num_layers=1, num_pages=1, page_size=1, num_kv_heads=1, head_dim=1, dtype="float32")
        super().__init__(_small_params(), config, layout, buffer, table)
        self.clock = DeviceClock(step_seconds)
        self._ends: deque[float] = deque()  # of the steps whose result is not asked for yet

    def _lower_forward(self, shape: StepShape) -> jax.stages.Lowered:
        num_sampled = self._table.num_sampled_rows(shape)
        batch = StepBatch.padding(shape, num_sampled, self._buffer.page_table.shape[1])

        def forward(
            params: LlamaParams, kv: jax.Array, slots: Slots, batch: StepBatch
        ) -> tuple[jax.Array, jax.Array]:
            return jnp.zeros((num_sampled, 1)), kv

        # Arguments that nothing reads are passed to the program nevertheless: passing them is what costs.
        program = jax.jit(forward, donate_argnums=1, keep_unused=True)
        return program.lower(self._params, self._kv, self._slots, batch)

    def _lower_sample(self, num_rows: int, all_greedy: bool) -> jax.stages.Lowered:
        def sample(logits: jax.Array, slots: Slots, rows: SamplingRows) -> tuple[Slots, jax.Array]:
            mixed = rows.ints[:, SEED_LOW].astype(jnp.uint32) * 2654435761 + rows.ints[:, POSITION].astype(jnp.uint32)
            return slots, ((mixed * 2246822519 >> 8) % VOCAB_SIZE).astype(jnp.int32)

        logits = jax.ShapeDtypeStruct((num_rows, 1), jnp.float32)
        program = jax.jit(sample, donate_argnums=1, keep_unused=True)
        return program.lower(logits, self._slots, SamplingRows.padding(num_rows, self._buffer.num_slots))

    def enqueue(self, plan: StepPlan, step: HostStep) -> PendingStep:
        pending = super().enqueue(plan, step)
        self._ends.append(self.clock.enqueue(time.perf_counter()))
        return pending

    def result(self, pending: PendingStep) -> list[int]:
        remaining = self._ends.popleft() - time.perf_counter()
        if remaining > 0:
            time.sleep(remaining)
        return super().result(pending)


class SimulatedEngine(Engine):
    """An engine without a model: everything of it is real but the device."""

    def __init__(
        self, config: EngineConfig, *, step_seconds: float = STEP_SECONDS, runner: type[SimulatedRunner] = SimulatedRunner
    ) -> None:
        """Args:
        config: with `num_pages`, as there is no memory to measure.
        """
        if config.num_pages is None:
            raise ValueError("num_pages is None; the pages of a simulated device must be counted out")
