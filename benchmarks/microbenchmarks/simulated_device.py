"""A simulated device whose steps take a given time but no processor, to measure the work of the host alone.

The host does the same work as for a real step: the engine's own code builds the arrays and calls two compiled
programs with as many arguments as those of a real model. But the programs compute almost nothing.

The times of the device are computed, and no thread plays them, because a Python thread would need the
interpreter lock to begin its next step. A step starts when it is enqueued or when the step before it ends,
whichever is later; `result` sleeps, without the lock, until the step has ended.
"""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from cache.storage import PAGE_SIZE_BY_BACKEND, KVLayout, KVPages
from engine.backends.base.backend import Backends
from engine.backends.xla.backend import BACKEND as XLA
from engine.engine import Engine
from engine.interface.config import TILE_SIZE, EngineConfig, ModelInfo
from engine.models.architectures.llama import Llama
from engine.models.parts.decoder_config import DecoderConfig
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence_buffer import SequenceBuffer
from engine.schedule.step_plan import StepPlan, StepResult
from engine.step.device_runner import DeviceRunner
from engine.step.inputs import StepBatch, StepInputs
from engine.step.programs import StepPrograms
from engine.step.runner import PendingStep
from engine.step.shapes import ShapeTable, StepShape
from engine.weights.layout import Params
from sampling.host.rows import POSITION, SEED_LOW, SamplerVariant, SamplingRows
from sampling.logprobs import NUM_COLUMNS, TOKEN
from sampling.processors.logits_processor import FeatureStates
from sampling.state import Slots

VOCAB_SIZE = 49152
STEP_SECONDS = 0.005
MAX_MODEL_LEN = 8192


class DeviceClock:
    """Tells when a device that computes its steps in order is busy and when it is idle."""

    def __init__(self, step_seconds: float) -> None:
        self.step_seconds = step_seconds
        self.num_steps = 0
        self.idle_seconds = 0.0  # the sum of the times from the end of a step to the start of the next
        self._end: float | None = None  # of the last step

    def enqueue(self, now: float) -> float:
        """Adds a step at a time in seconds; when it ends."""
        start = now if self._end is None else max(now, self._end)
        if self._end is not None:
            self.idle_seconds += start - self._end
        self._end = start + self.step_seconds
        self.num_steps += 1
        return self._end


class SimulatedRunner(DeviceRunner):
    """The runner of a model that takes time but computes nothing.

    A token is a cheap function of the seed and the position of its row, so a request gets the same tokens
    whatever else runs.
    """

    def __init__(self, buffer: SequenceBuffer, table: ShapeTable, step_seconds: float) -> None:
        config = DecoderConfig(
            vocab_size=VOCAB_SIZE, hidden_size=1, intermediate_size=1, num_layers=1, num_heads=1, num_kv_heads=1,
            head_dim=1, context_length=MAX_MODEL_LEN, rms_norm_eps=1.0,
            rotary=(), tables=(-1,), windows=(0,), attention_scale=1.0, has_output=False,
        )  # fmt: skip
        model = Llama(config)
        layout = KVLayout(num_layers=1, num_pages=1, page_size=1, num_kv_heads=1, head_dim=1, dtype="float32")
        super().__init__(
            _params(model), model, Backends(XLA, XLA, "simulated"), layout, buffer, table,
            make_programs=_SimulatedPrograms,
        )  # fmt: skip
        self.clock = DeviceClock(step_seconds)
        self._ends: dict[int, float] = {}  # the end of each step in flight, by the id() of its plan

    def enqueue(self, plan: StepPlan, inputs: StepInputs) -> PendingStep:
        pending = super().enqueue(plan, inputs)
        self._ends[id(plan)] = self.clock.enqueue(time.perf_counter())
        return pending

    def result(self, pending: PendingStep) -> StepResult:
        remaining = self._ends.pop(id(pending.plan)) - time.perf_counter()
        if remaining > 0:
            time.sleep(remaining)
        return super().result(pending)

    def is_done(self, pending: PendingStep) -> bool:
        return self._ends[id(pending.plan)] <= time.perf_counter()


class _SimulatedPrograms(StepPrograms):
    """Programs that take the arguments of the real ones, because passing arguments is a cost of the host."""

    def _lower_forward(self, shape: StepShape) -> jax.stages.Lowered:
        num_sampled = self._table.num_sampled_rows(shape)

        def forward(
            params: Params, kv: KVPages, slots: Slots, batch: StepBatch
        ) -> tuple[jax.Array, KVPages, jax.Array]:
            return jnp.zeros((num_sampled, 1)), kv, jnp.zeros(1)  # the last for `score`

        batch = StepBatch.padding(shape, num_sampled, self._page_table_shape[1])
        return jax.jit(forward, donate_argnums=1, keep_unused=True).lower(
            self._arrays.params, self._arrays.kv, self._arrays.slots, batch
        )

    def _lower_sample(self, num_rows: int, level: SamplerVariant) -> jax.stages.Lowered:
        def sample(logits: jax.Array, slots: Slots, rows: SamplingRows) -> tuple[Slots, jax.Array]:
            return slots, _tokens(rows)

        logits = jnp.zeros((num_rows, 1))
        rows = SamplingRows.padding(num_rows, self._num_slots)
        return jax.jit(sample, donate_argnums=1, keep_unused=True).lower(logits, self._arrays.slots, rows)

    def _lower_sample_full(self, num_rows: int) -> jax.stages.Lowered:
        def sample(
            logits: jax.Array, slots: Slots, states: FeatureStates, rows: SamplingRows, masks: jax.Array
        ) -> tuple[Slots, FeatureStates, jax.Array]:
            return slots, states, jnp.zeros((num_rows, NUM_COLUMNS), jnp.int32).at[:, TOKEN].set(_tokens(rows))

        logits = jnp.zeros((num_rows, 1))
        rows = SamplingRows.padding(num_rows, self._num_slots)
        program = jax.jit(sample, donate_argnums=(1, 2), keep_unused=True)
        return program.lower(logits, self._arrays.slots, self._arrays.states, rows, self.new_masks(num_rows))

    def _lower_pool(self) -> jax.stages.Lowered:
        def pool(params: Params, hidden: jax.Array, tokens: jax.Array, shares: jax.Array) -> jax.Array:
            return jnp.zeros(1)

        tokens, shares = jnp.zeros(TILE_SIZE, jnp.int32), jnp.zeros(TILE_SIZE)
        return jax.jit(pool, keep_unused=True).lower(self._arrays.params, jnp.zeros(1), tokens, shares)

    def _lower_score(self) -> jax.stages.Lowered:
        def score(params: Params, hidden: jax.Array, tokens: jax.Array, following: jax.Array) -> jax.Array:
            return jnp.zeros((TILE_SIZE, NUM_COLUMNS), jnp.int32)

        tokens = jnp.zeros(TILE_SIZE, jnp.int32)
        return jax.jit(score, keep_unused=True).lower(self._arrays.params, jnp.zeros(1), tokens, tokens)


def _tokens(rows: SamplingRows) -> jax.Array:
    seed, position = jnp.asarray(rows.ints)[:, SEED_LOW], jnp.asarray(rows.ints)[:, POSITION]
    return (seed ^ position * 1_103_515_245) >> 8 & 0x7FFF  # below VOCAB_SIZE


class SimulatedEngine(Engine):
    """An engine on the simulated device; all its other parts are real."""

    def __init__(
        self,
        config: EngineConfig,
        step_seconds: float = STEP_SECONDS,
        *,
        runner: Callable[[SequenceBuffer, ShapeTable, float], SimulatedRunner] = SimulatedRunner,
        scheduler: Callable[..., Scheduler] = Scheduler,
    ) -> None:
        """Compiles the programs; takes a second or two.

        Args:
            config: must set num_pages, because there is no memory from which it could be derived.
            runner, scheduler: the classes, or functions with the same arguments that make classes with clocks.

        Raises ValueError: num_pages is not set, or decode_chunk is not 1.
        """
        if config.num_pages is None:
            raise ValueError("num_pages is None; it cannot be derived from the memory of a simulated device")
        if config.decode_chunk != 1:
            raise ValueError(f"decode_chunk is {config.decode_chunk}; a simulated device does one step at a time")
        layout = KVLayout(
            num_layers=1,
            num_pages=config.num_pages,
            page_size=config.page_size or PAGE_SIZE_BY_BACKEND["cpu"],
            num_kv_heads=1,
            head_dim=1,
            dtype="float32",
        )
        max_model_len = min(config.max_model_len or MAX_MODEL_LEN, (config.num_pages - 1) * layout.page_size)
        model_info = ModelInfo(
            "simulated", VOCAB_SIZE, max_model_len, config.dtype, 0, "cpu", "xla", "xla", "simulated"
        )
        made: list[SimulatedRunner] = []

        def make_runner(buffer: SequenceBuffer, table: ShapeTable) -> SimulatedRunner:
            made.append(runner(buffer, table, step_seconds))
            return made[0]

        super().__init__(config, layout, model_info, make_runner, lambda stage, done, total: None, scheduler)
        self.simulated = made[0]

    @property
    def clock(self) -> DeviceClock:
        return self.simulated.clock


def _params(model: Llama) -> Params:
    """A parameter tree with as many leaves as that of a real model, but without weights."""
    return {leaf.name: jnp.zeros(1) for leaf in model.leaves()}
