"""The runner of a real model: it dispatches the programs of a step to the device and waits for their tokens."""

from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np

from cache.storage import KVLayout
from engine.adapters.adapter_stacks import AdapterStacks
from engine.adapters.adapter_weights import AdapterWeights
from engine.backends.base.backend import Backends
from engine.backends.base.bursts import Burst
from engine.interface.config import TILE_SIZE
from engine.interface.types import Pooling
from engine.models.parts.model import Model
from engine.parallel.placement import Placement
from engine.schedule.request import Request
from engine.schedule.sequence_buffer import SequenceBuffer
from engine.schedule.step_plan import StepPlan, StepResult
from engine.step.device_arrays import DeviceArrays
from engine.step.inputs import FeatureWrite, InputBuilder, StepInputs, writes_of
from engine.step.page_io import PageIO
from engine.step.pooled_tiles import NUM_WAYS
from engine.step.programs import StepPrograms
from engine.step.runner import PendingStep
from engine.step.shapes import ShapeTable
from engine.weights.layout import Params
from sampling.host.rows import SamplerVariant
from sampling.logprobs import TOKEN
from sampling.processors.logits_processor import StateShape

MAX_BURST_STEPS = 16
_LOOK_SECONDS = 0.5  # between two looks at a program that has told nothing, because it may have failed

_NOTHING_SAMPLED = np.full(1, -1, np.int32)  # by a step of an encoder


class DeviceRunner:
    """A `Runner` of one model. Its parts are the device's `arrays`, the compiled `programs` and the `pages`' copies."""

    def __init__(
        self, params: Params, model: Model, backends: Backends, layout: KVLayout,
        buffer: SequenceBuffer, table: ShapeTable, num_scheduler_steps: int = 1, *,
        placement: Placement | None = None, store: Path | None = None, copies_pages: bool = False,
        adapters: AdapterStacks | None = None, make_programs: Callable[..., StepPrograms] = StepPrograms,
    ) -> None:  # fmt: skip
        """
        Args:
            placement: by default one device.
            store: the folder in which compiled programs are kept; None: they are not.
            copies_pages: whether `pages` will be used.
            adapters: what puts adapters beside `params`; None: none can be used.
            make_programs: StepPrograms, or a class with the same constructor.
        """
        self.model = model
        self.backends = backends
        self.adapters = adapters
        self.max_pages_per_request = buffer.page_table.shape[1]
        self.state_shape = StateShape(buffer.num_slots, model.config.vocab_size, buffer.token_ids.shape[1])
        self.arrays = DeviceArrays(params, backends, layout, self.state_shape, placement or Placement())
        self.programs = make_programs(
            self.arrays, model, backends, layout, buffer, table, self.state_shape,
            num_scheduler_steps=num_scheduler_steps, store=store, copies_pages=copies_pages,
        )  # fmt: skip
        self._compiled = self.programs.compiled
        self.pages = PageIO(self.arrays, self._compiled)
        self._inputs = InputBuilder(buffer, table)
        self._is_on_host = jax.default_backend() == "cpu"
        self.start()  # last: where anything before it fails, nothing is left to close

    # ---------------------------------------------------------------- the step

    @property
    def max_burst_steps(self) -> int:
        return MAX_BURST_STEPS if self.programs.has_bursts else 1

    def dispatch(self, plan: StepPlan) -> PendingStep:
        """Builds the input arrays of the step and enqueues it."""
        return self.enqueue(plan, self.build(plan))

    def dispatch_burst(self, plans: Sequence[StepPlan]) -> list[PendingStep]:
        """Builds the input arrays of the first step and enqueues the program of all."""
        inputs = self._inputs.build(plans[0], num_ahead=len(plans) - 1)
        self._write(self._writes_of(inputs))
        return self._launch_burst(plans, inputs)

    def cut(self, pending: PendingStep) -> int:
        """See `Runner.cut`."""
        if pending.burst is None:
            return 0
        num_cut = pending.index + 1 - pending.burst.cut()
        self._inputs.withdraw(pending.plan, num_cut)
        return num_cut

    def build(self, plan: StepPlan) -> StepInputs:
        """Builds the input arrays of a step. Steps must be enqueued in the order in which they are built."""
        return self._inputs.build(plan)

    def enqueue(self, plan: StepPlan, inputs: StepInputs) -> PendingStep:
        """Enqueues the programs of a built step; for a step that awaits masks, the forward pass alone."""
        return self.launch(plan, inputs, self._writes_of(inputs))

    def launch(self, plan: StepPlan, inputs: StepInputs, writes: Sequence[FeatureWrite]) -> PendingStep:
        """As `enqueue`, with the state writes that the requests in `inputs.admitted` need."""
        self._write(writes)
        is_one = inputs.num_scheduler_steps == 1 and not inputs.awaits_masks
        if is_one and self.programs.are_bursts(inputs.shape, inputs.level):
            return self._launch_burst([plan], inputs)[0]
        pending, arrays, compiled = PendingStep(plan, inputs), self.arrays, self._compiled
        if inputs.num_scheduler_steps > 1:
            decode = compiled["multi_step", inputs.shape.num_rows, inputs.level]
            arrays.kv, arrays.slots, pending.out = decode(
                arrays.params, arrays.kv, arrays.slots, inputs.batch, inputs.sampling
            )
            self._start_copy(pending.out)
            return pending
        if self.model.is_encoder:
            shares = np.zeros((NUM_WAYS, inputs.shape.num_tiles, TILE_SIZE), np.float32)
            for tile_of_text in inputs.pooled:
                shares[tile_of_text.way, tile_of_text.tile] = tile_of_text.shares
            num_ways = np.int32(1 + max((tile_of_text.way for tile_of_text in inputs.pooled), default=0))
            pending.out, arrays.kv, pending.states = compiled["encode", inputs.shape](
                arrays.params, arrays.kv, inputs.batch._replace(sampled=_NOTHING_SAMPLED), shares, num_ways
            )
            self._start_copy(pending.out)
            return pending
        outputs = compiled["forward", inputs.shape](arrays.params, arrays.kv, arrays.slots, inputs.batch)
        pending.logits, arrays.kv = outputs[:2]
        for tile in inputs.scored:
            score = compiled["score"](arrays.params, outputs[2], tile.hidden, tile.following)
            self._start_copy(score)
            pending.scores.append(score)
        for pooled_tile in inputs.pooled:
            piece = compiled["pool"](arrays.params, outputs[2], pooled_tile.hidden, pooled_tile.shares)
            self._start_copy(piece)
            pending.pooled.append(piece)
        if not inputs.awaits_masks:
            self.sample(pending, self.programs.no_masks[len(inputs.batch.sampled)])
        return pending

    def _writes_of(self, inputs: StepInputs) -> list[FeatureWrite]:
        return [write for request in inputs.admitted for write in writes_of(request, self.state_shape)]

    def _write(self, writes: Sequence[FeatureWrite]) -> None:
        arrays = self.arrays
        for name, slot, row in writes:
            state = self._compiled["write", name](arrays.states[name], np.int32(slot), row)
            arrays.states = {**arrays.states, name: state}

    def _launch_burst(self, plans: Sequence[StepPlan], inputs: StepInputs) -> list[PendingStep]:
        arrays, num_rows = self.arrays, inputs.shape.num_rows
        assert self.backends.bursts is not None
        burst = self.backends.bursts.open(num_rows, len(plans))
        arrays.kv, arrays.slots, num_steps = self._compiled["burst", num_rows](
            arrays.params, arrays.kv, arrays.slots, inputs.batch, inputs.sampling, burst.name
        )
        return [PendingStep(plan, inputs, out=num_steps, burst=burst, index=i) for i, plan in enumerate(plans)]

    def new_masks(self, pending: PendingStep) -> np.ndarray:
        """Makes masks that allow nothing, uint32[num_rows, num_words]."""
        return self.programs.new_masks(len(pending.inputs.batch.sampled))

    def sample(self, pending: PendingStep, masks: np.ndarray | jax.Array) -> None:
        """Enqueues the sampling of a step and starts the copy of its tokens to the host."""
        inputs, arrays = pending.inputs, self.arrays
        program = self._compiled["sample", len(inputs.batch.sampled), inputs.level]
        if inputs.level is SamplerVariant.FULL:
            arrays.slots, arrays.states, pending.out = program(
                pending.logits, arrays.slots, arrays.states, inputs.sampling, masks
            )
        else:
            arrays.slots, pending.out = program(pending.logits, arrays.slots, inputs.sampling)
        pending.logits = None
        self._start_copy(pending.out)

    def _start_copy(self, output: jax.Array) -> None:
        """Copies an output to the host as soon as it is computed. On a CPU it is in the host's memory already."""
        if not self._is_on_host:
            output.copy_to_host_async()

    def result(self, pending: PendingStep) -> StepResult:
        """Waits for the tokens of the step, without holding the interpreter lock."""
        if pending.burst is not None:
            return StepResult(_told(pending, pending.burst)[: pending.inputs.num_sampled].tolist())
        inputs, out = pending.inputs, np.asarray(pending.out)
        prompt_logprobs: dict[Request, np.ndarray] = {}
        for tile, score in zip(inputs.scored, pending.scores, strict=True):
            piece = np.asarray(score)[: tile.num_tokens]
            before = prompt_logprobs.get(tile.request)
            prompt_logprobs[tile.request] = piece if before is None else np.concatenate([before, piece])
        pooled = self._pooled(pending, out)
        if self.model.is_encoder:
            return StepResult([0] * inputs.num_sampled, None, prompt_logprobs, pooled)
        if inputs.level is SamplerVariant.FULL:
            out = out[: inputs.num_sampled]
            return StepResult(out[:, TOKEN].tolist(), out, prompt_logprobs, pooled)
        return StepResult(out[..., : inputs.num_sampled].ravel().tolist(), None, prompt_logprobs, pooled)

    def _pooled(self, pending: PendingStep, out: np.ndarray) -> dict[Request, list[np.ndarray]]:
        """What the step adds to embeddings, as `StepResult` has it."""
        pieces: dict[Request, list[list[np.ndarray]]] = {}
        for index, tile in enumerate(pending.inputs.pooled):
            ways = pieces.setdefault(tile.request, [[] for _ in tile.request.poolings])
            if not self.model.is_encoder:
                ways[tile.way] += list(np.asarray(pending.pooled[index])[tile.has_tokens])
            elif tile.request.poolings == (Pooling.NONE,):
                ways[0] += list(np.asarray(pending.states)[tile.hidden[tile.hidden >= 0]])
            else:
                ways[tile.way] = [out[tile.way, tile.tile]]  # the last tile of a text has all of it
        return {request: [np.array(vectors) for vectors in ways] for request, ways in pieces.items()}

    def is_done(self, pending: PendingStep) -> bool:
        """Whether the device has computed the tokens of the step; does not wait."""
        if pending.burst is not None:
            return pending.burst.is_told(pending.index)
        return pending.out is not None and _is_ready(pending.out)

    # ---------------------------------------------------------------- between steps, nothing in flight

    def load_adapter(self, slot: int, weights: AdapterWeights) -> None:
        """Puts an adapter into a slot; raises ValueError if there is none."""
        if self.adapters is None:
            raise ValueError("the engine takes no adapters")
        self.arrays.params = self.adapters.load(self.arrays.params, slot, weights)

    def write_adapters(self) -> None:
        """Writes the adapters that are in memory beside weights that have come back."""
        if self.adapters is not None:
            self.arrays.params = self.adapters.write_all(self.arrays.params)

    def start(self) -> None:
        """Starts the threads that load programs and populate pages, if they do not run."""
        self._compiled.start()
        # Loading a program allocates memory many times, and each time it would wait for that of the pages.
        self.arrays.start(self._compiled.are_loaded.wait)

    def close(self) -> None:
        """Ends these threads; `start` or `wake` may start them again. Idempotent; never raises."""
        self._compiled.close()
        self.arrays.close()

    def sleep(self, *, drop_weights: bool) -> None:
        """Frees the memory of the pages; with `drop_weights`, also moves the weights to host memory."""
        self._free_pages()
        if drop_weights:
            self.arrays.move_weights_to_host()

    def wake(self) -> None:
        """Undoes `sleep`, with empty pages. Where it fails, they have no memory and the weights are where they were."""
        self._free_pages()  # a follower has some if it woke and not all hosts did
        try:
            self.arrays.allocate_pages()
            self.start()
            self.arrays.put_weights()
            self.write_adapters()
        except BaseException:
            self._free_pages()
            raise

    def _free_pages(self) -> None:
        self.close()
        self.arrays.free_pages()


def _told(pending: PendingStep, burst: Burst) -> np.ndarray:
    """The tokens of a step of a burst; raises what has ended its program before it."""
    while (tokens := burst.wait(pending.index, _LOOK_SECONDS)) is None:
        assert pending.out is not None
        if _is_ready(pending.out) and not burst.is_told(pending.index):
            num_steps = np.asarray(pending.out)  # raises where the program has failed
            raise RuntimeError(f"a program of several steps ended after {num_steps}, before number {pending.index + 1}")
    return tokens


def _is_ready(output: jax.Array) -> bool:
    is_ready: bool = output.is_ready()  # type: ignore[attr-defined]  # missing in jax's stub of Array
    return is_ready
