"""A fake device whose output can be computed by hand.

Its cache stores token ids where a real one stores keys and values, and its "model" reads every token of a
sequence back through the page table. So the output differs from `expected_output` if a page is written,
shared or freed wrongly, or if an input token comes from the wrong place. A step runs only when its result
is asked for, as on a device that is late.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.backends.base.token_layout import NUM_TOKENS, SLOT, START, TOKEN
from engine.schedule.sequence_buffer import SequenceBuffer
from engine.schedule.step_plan import StepPlan, StepResult
from engine.step.grammar_masks import allocate_masks
from engine.step.inputs import FROM_DEVICE, InputBuilder, StepInputs
from engine.step.shapes import ShapeTable
from sampling.host.features import GRAMMAR
from sampling.host.grammar import num_words_of
from sampling.host.rows import BITS, NOTHING_LEFT, POSITION, SEED_LOW, TEMPERATURE, USES
from sampling.host.rows import SLOT as SAMPLING_SLOT

VOCAB_SIZE = 40
EOS = 0


def next_token(token_ids: Sequence[int], seed: int) -> int:
    """The fake model: a function of the whole sequence and of the seed; pass seed 0 for greedy sampling."""
    return zlib.crc32(np.array(token_ids, np.int32).tobytes(), seed & 0xFFFFFFFF) % VOCAB_SIZE


def next_allowed(token: int, mask: np.ndarray) -> int:
    """The first allowed token from `token` on, with wrap-around; VOCAB_SIZE + NOTHING_LEFT if none is allowed."""
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCAB_SIZE]
    order = np.roll(np.arange(VOCAB_SIZE), -token)
    allowed = order[bits[order] != 0]
    return int(allowed[0]) if len(allowed) else VOCAB_SIZE + NOTHING_LEFT


def expected_output(prompt: Sequence[int], seed: int, max_length: int, *, ignore_eos: bool = False) -> list[int]:
    """What a request gets when it runs alone. Pass seed 0 for a greedy request."""
    tokens = list(prompt)
    while len(tokens) < max_length:
        tokens.append(next_token(tokens, seed))
        if tokens[-1] == EOS and not ignore_eos:
            break
    return tokens[len(prompt) :]


@dataclass
class FakePending:
    plan: StepPlan
    inputs: StepInputs
    tokens: list[int] | None = None
    masks: np.ndarray | None = None  # of a step that awaits them
    index: int = 0  # in its burst
    burst: list[FakePending] = field(default_factory=list)  # of all steps, or none


@dataclass
class FakeRunner:
    """Executes plans with numpy; `max_in_flight` is the largest number of steps that were in flight at once."""

    buffer: SequenceBuffer
    table: ShapeTable
    num_pages: int
    page_size: int
    windows: Sequence[int] = (0,)  # of groups of layers with pages of their own; the first one sees all
    queue: list[FakePending | Callable[[], None]] = field(default_factory=list)  # steps, and copies of pages
    num_steps: int = 0
    max_in_flight: int = 0
    on_execute: Callable[[StepPlan], None] = lambda plan: None  # called when a step runs
    max_burst_steps: int = 1
    # Of a burst that is cut, how many steps the device has computed that the host has not asked for, if there are any.
    lead: Callable[[], int] = lambda: 0
    num_cut: int = 0  # steps that were withdrawn

    def __post_init__(self) -> None:
        self.inputs = InputBuilder(self.buffer, self.table)
        self.cache = np.full((self.num_pages, self.page_size), -1, np.int64)
        self.last_token = np.zeros(self.buffer.num_slots, np.int64)

    def dispatch(self, plan: StepPlan) -> FakePending:
        pending = FakePending(plan, self.inputs.build(plan))
        self.queue.append(pending)
        self.num_steps += 1
        self.max_in_flight = max(self.max_in_flight, sum(isinstance(item, FakePending) for item in self.queue))
        return pending

    def dispatch_burst(self, plans: Sequence[StepPlan]) -> list[FakePending]:
        assert 1 < len(plans) <= self.max_burst_steps
        inputs = self.inputs.build(plans[0], num_ahead=len(plans) - 1)
        burst: list[FakePending] = []
        for index, plan in enumerate(plans):
            assert plan.requests == plans[0].requests
            assert plan.starts == [start + index for start in plans[0].starts]
            burst.append(FakePending(plan, _moved(inputs, index), index=index, burst=burst))
        self.queue += burst
        self.num_steps += 1
        return burst

    def cut(self, pending: FakePending) -> int:
        if not pending.burst:
            return 0
        assert pending is pending.burst[-1], "another step than the last one is cut"
        for _ in range(self.lead()):
            unknown = [step for step in pending.burst if step.tokens is None]
            if len(unknown) > 1:
                self._run_until(unknown[0])
        begun = [step for step in pending.burst if step.tokens is not None]
        num_begun = min(len(begun) + 1, len(pending.burst))
        fallen = pending.burst[num_begun:]
        del pending.burst[num_begun:]
        self.queue = [item for item in self.queue if not any(item is step for step in fallen)]
        self.inputs.withdraw(pending.plan, len(fallen))
        self.num_cut += len(fallen)
        return len(fallen)

    def new_masks(self, pending: FakePending) -> np.ndarray:
        return allocate_masks(len(pending.inputs.batch.sampled), num_words_of(VOCAB_SIZE))

    def sample(self, pending: FakePending, masks: np.ndarray) -> None:
        assert pending.inputs.awaits_masks
        pending.masks = masks

    def result(self, pending: FakePending) -> StepResult:
        self._run_until(pending)
        assert pending.tokens is not None
        return StepResult(pending.tokens)

    def _run_until(self, pending: FakePending) -> None:
        while pending.tokens is None:
            first = self.queue.pop(0)
            assert isinstance(first, FakePending)
            assert first.masks is not None or not first.inputs.awaits_masks, "a step samples before its masks are there"
            self.on_execute(first.plan)
            first.tokens = self._execute_repeats(first.inputs, first.masks)
            self._copy_pages()

    def is_done(self, pending: FakePending) -> bool:
        return pending.tokens is not None

    @property
    def page_bytes(self) -> int:
        return self.cache[0].nbytes

    def read_page(self, page_id: int) -> list[np.ndarray]:
        copies: list[np.ndarray] = []
        self.queue.append(lambda: copies.append(self.cache[page_id].copy()))
        self._copy_pages()
        return copies

    def write_page(self, page_id: int, page: np.ndarray) -> None:
        self.queue.append(lambda: self.cache.__setitem__(page_id, page))
        self._copy_pages()

    def to_host(self, page: list[np.ndarray]) -> list[np.ndarray]:
        assert page, "the step that fills the page has not run yet"
        return page

    def to_device(self, content: np.ndarray) -> np.ndarray:
        return content.view(self.cache.dtype)

    def _copy_pages(self) -> None:
        """Copies the pages whose turn it is: those that no step in the queue stands before."""
        while self.queue and not isinstance(self.queue[0], FakePending):
            copy = self.queue.pop(0)
            assert not isinstance(copy, FakePending)
            copy()

    def _tables(self, table: np.ndarray) -> np.ndarray:
        """A row's page table in each group."""
        return table.reshape(len(self.windows), -1)

    def _tokens(self, table: np.ndarray, num_tokens: int) -> np.ndarray:
        """What the cache has of a sequence in one group."""
        return self.cache[table[: -(-num_tokens // self.page_size)]].reshape(-1)[:num_tokens]

    def _execute_repeats(self, inputs: StepInputs, masks: np.ndarray | None) -> list[int]:
        tokens = []
        for _ in range(inputs.num_scheduler_steps):
            tokens += self._execute(inputs, masks)
            inputs = _moved(inputs, 1)
        return tokens

    def _execute(self, inputs: StepInputs, masks: np.ndarray | None) -> list[int]:
        batch, shape = inputs.batch, inputs.shape
        input_tokens = np.zeros(shape.num_tokens, np.int64)
        owner = np.zeros(shape.num_tokens, np.int64)
        tile_size = batch.tile_tokens.shape[1]
        for row in range(shape.num_rows):
            is_decode = row < shape.num_decode_rows
            tile = row - shape.num_decode_rows
            first = row if is_decode else shape.num_decode_rows + tile * tile_size
            for i in range(batch.rows[row, NUM_TOKENS]):
                if is_decode:
                    given = batch.rows[row, TOKEN]
                    token = self.last_token[batch.rows[row, SLOT]] if given == FROM_DEVICE else given
                else:
                    token = batch.tile_tokens[tile, i]
                position = batch.rows[row, START] + i
                for group, table in enumerate(self._tables(batch.page_table[row])):
                    page = table[position // self.page_size]
                    assert page != 0, "a real token is written to the null page"
                    self.cache[page, position % self.page_size] = token + group * VOCAB_SIZE
                input_tokens[first + i], owner[first + i] = token, row
        tokens = []
        sampling = inputs.sampling
        for index in range(inputs.num_sampled):
            row = owner[batch.sampled[index]]
            position = sampling.ints[index, POSITION]
            tables = self._tables(batch.page_table[row])
            sequence = self._tokens(tables[0], position)
            for group, window in enumerate(self.windows):
                seen = slice(max(0, position - window), None) if window else slice(None)
                of_group = self._tokens(tables[group], position) - group * VOCAB_SIZE
                np.testing.assert_array_equal(of_group[seen], sequence[seen], "a window holds other tokens")
            assert sequence[-1] == input_tokens[batch.sampled[index]], "the row samples behind another token"
            seed = int(sampling.ints[index, SEED_LOW]) if sampling.floats[index, TEMPERATURE] else 0
            token = next_token(sequence, seed)
            if sampling.ints[index, USES] & BITS[GRAMMAR]:
                assert masks is not None
                token = next_allowed(token, masks[index])
            tokens.append(token)
        self.last_token[sampling.ints[: inputs.num_sampled, SAMPLING_SLOT]] = tokens
        return tokens


def _moved(inputs: StepInputs, index: int) -> StepInputs:
    """Those of the step so many steps later in the same program."""
    if not index:
        return inputs
    rows, ints = inputs.batch.rows.copy(), inputs.sampling.ints.copy()
    rows[:, START] += index
    rows[:, TOKEN] = FROM_DEVICE
    ints[:, POSITION] += index
    return inputs._replace(batch=inputs.batch._replace(rows=rows), sampling=inputs.sampling._replace(ints=ints))
