"""The arrays of a step beside its real rows: what stands in the padding, and where the arrays lie."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.page import CachePage
from engine.backends.base.token_layout import NUM_TOKENS, SLOT, START, TOKEN
from engine.schedule.request import Request
from engine.schedule.sequence_buffer import SequenceBuffer
from engine.schedule.step_plan import StepPlan
from engine.step.inputs import FROM_DEVICE, InputBuilder, StepInputs, build_inputs
from engine.step.shapes import ShapeTable
from sampling.host.params import SamplingParams
from sampling.host.rows import SamplerVariant, SamplingRows, values_of

NUM_SLOTS = 4


def running_requests(buffer: SequenceBuffer, count: int) -> list[Request]:
    """Requests of random sampling with two prompt tokens each and a page that has the number of their slot plus one."""
    requests = []
    for index in range(count):
        request = Request(str(index), [10 + index, 20 + index], SamplingParams(temperature=1.0), seed=1, max_length=8)
        buffer.add_request(request)
        buffer.page_table[request.slot, 0] = request.slot + 1
        requests.append(request)
    return requests


def test_padding_rows_read_the_null_page_and_sample_nothing() -> None:
    buffer = SequenceBuffer(NUM_SLOTS, max_model_len=8, max_pages_per_request=2)
    plan = StepPlan()
    for request in reversed(running_requests(buffer, 3)):
        plan.add(request, start=1, num_tokens=1, samples=True)
    inputs = build_inputs(plan, buffer, ShapeTable(NUM_SLOTS, max_num_tiles=1))
    batch, padding = inputs.batch, SamplingRows.padding(1, NUM_SLOTS)
    assert batch.page_table.tolist() == [[3, 0], [2, 0], [1, 0], [0, 0]]
    assert batch.rows[:, NUM_TOKENS].tolist() == [1, 1, 1, 0]
    assert batch.rows[:3, SLOT].tolist() == [2, 1, 0]
    assert batch.sampled.tolist() == [0, 1, 2, -1]
    assert (inputs.sampling.ints[3:] == padding.ints).all()
    assert (inputs.sampling.floats[3:] == padding.floats).all()
    assert inputs.level is SamplerVariant.RANDOM


def test_a_token_that_the_host_knows_is_sent_only_until_the_device_has_a_later_one() -> None:
    buffer = SequenceBuffer(NUM_SLOTS, max_model_len=8, max_pages_per_request=2)
    old, new = running_requests(buffer, 2)
    table = ShapeTable(NUM_SLOTS, max_num_tiles=1)
    first = StepPlan()
    first.add(old, start=1, num_tokens=1, samples=True)
    assert build_inputs(first, buffer, table).batch.rows[0, TOKEN] == 20
    second = StepPlan()
    second.add(old, start=2, num_tokens=1, samples=True)
    second.add(new, start=1, num_tokens=1, samples=True)
    rows = build_inputs(second, buffer, table).batch.rows
    assert rows[:, START].tolist() == [2, 1]
    assert rows[:, TOKEN].tolist() == [FROM_DEVICE, 21]


def test_the_inputs_of_two_steps_share_no_memory_and_xla_need_not_copy_the_page_table() -> None:
    buffer = SequenceBuffer(NUM_SLOTS, max_model_len=8, max_pages_per_request=2)
    plan = StepPlan()
    for request in running_requests(buffer, 4):
        plan.add(request, start=1, num_tokens=1, samples=True)
    table = ShapeTable(NUM_SLOTS, max_num_tiles=1)
    first, second = build_inputs(plan, buffer, table), build_inputs(plan, buffer, table)
    before = [array.copy() for array in (*first.batch.arrays, *first.sampling)]
    for array in (*second.batch.arrays, *second.sampling, buffer.page_table, *buffer.sampling):
        array += 1
    assert all((array == old).all() for array, old in zip((*first.batch.arrays, *first.sampling), before, strict=True))
    assert first.batch.page_table.ctypes.data % 64 == 0


class Twin:
    """Two buffers that all requests come to and go from alike; one builds each step anew."""

    def __init__(self) -> None:
        sizes = {"num_slots": NUM_SLOTS, "max_model_len": 64, "max_pages_per_request": 8}
        self.buffers = [SequenceBuffer(**sizes), SequenceBuffer(**sizes)]
        self.table = ShapeTable(NUM_SLOTS, max_num_tiles=2)
        self.builder = InputBuilder(self.buffers[1], self.table)
        self.lengths: list[int] = []  # of the running requests, in the order of their rows
        self.requests: list[tuple[Request, Request]] = []
        self.num_added = 0

    def add(self, params: SamplingParams, num_tokens: int = 2) -> None:
        self.num_added += 1
        tokens = [self.num_added, *range(1, num_tokens)]
        pair = [Request(str(self.num_added), tokens, params, seed=3, max_length=64) for _ in self.buffers]
        for request, buffer in zip(pair, self.buffers, strict=True):
            buffer.add_request(request)
        self.requests.append((pair[0], pair[1]))
        self.lengths.append(num_tokens - 1)

    def remove(self, index: int) -> None:
        for request, buffer in zip(self.requests.pop(index), self.buffers, strict=True):
            buffer.remove_request(request)
        del self.lengths[index]

    def give_page(self, index: int, page: int) -> None:
        for request, buffer in zip(self.requests[index], self.buffers, strict=True):
            buffer.write_pages(request.slot, self.lengths[index] // 8, [CachePage(page)])

    def step(self, skipped: frozenset[int], num_scheduler_steps: int) -> tuple[StepInputs, StepInputs]:
        """The inputs of a step in which all decode but those skipped, built in either way."""
        plans = [StepPlan(num_scheduler_steps=num_scheduler_steps), StepPlan(num_scheduler_steps=num_scheduler_steps)]
        for index, pair in enumerate(self.requests):
            if index not in skipped:
                for plan, request in zip(plans, pair, strict=True):
                    plan.add(request, self.lengths[index], 1, samples=True)
                self.lengths[index] += num_scheduler_steps
        return build_inputs(plans[0], self.buffers[0], self.table), self.builder.build(plans[1])


def contents(inputs: StepInputs) -> list[object]:
    arrays = [array.tolist() for array in (*inputs.batch.arrays, *inputs.sampling)]
    counts = [inputs.shape, inputs.level, inputs.num_sampled, inputs.num_scheduler_steps, inputs.awaits_masks]
    return [*arrays, *counts, [request.request_id for request in inputs.admitted]]


PARAMS = st.sampled_from(
    [SamplingParams(), SamplingParams(temperature=1.0), SamplingParams(temperature=0.5, presence_penalty=1.0)]
)


@given(data=st.data())
def test_a_step_that_goes_on_from_the_last_one_has_the_inputs_of_one_that_is_built_anew(data: st.DataObject) -> None:
    twin = Twin()
    seen: list[tuple[StepInputs, list[object]]] = []
    for _ in range(data.draw(st.integers(1, 12))):
        index = st.integers(0, max(len(twin.requests) - 1, 0))
        match data.draw(st.sampled_from(["add", "remove", "page", "steps", "steps", "steps"])):
            case "add" if len(twin.requests) < NUM_SLOTS:
                twin.add(data.draw(PARAMS), data.draw(st.integers(1, 6)))
            case "remove" if twin.requests:
                twin.remove(data.draw(index))
            case "page" if twin.requests:
                twin.give_page(data.draw(index), data.draw(st.integers(1, 99)))
            case "steps" if twin.requests:
                skipped = data.draw(st.sets(index, max_size=len(twin.requests) - 1))
                for _ in range(data.draw(st.integers(1, 3))):
                    if max(twin.lengths) < 60:
                        anew, going_on = twin.step(frozenset(skipped), data.draw(st.sampled_from([1, 1, 1, 2])))
                        assert contents(going_on) == contents(anew)
                        seen.append((going_on, contents(anew)))
        known = [buffer.device_token_position.tolist() for buffer in twin.buffers]
        assert known[0] == known[1]
    # A device may still read the inputs of a step while those of later ones are built.
    assert all(contents(inputs) == before for inputs, before in seen)


def test_another_request_in_the_same_slot_at_the_same_position_begins_with_its_own_inputs() -> None:
    twin = Twin()
    twin.add(SamplingParams(temperature=1.0), num_tokens=2)
    twin.step(frozenset(), 1)
    twin.remove(0)
    twin.add(SamplingParams(temperature=0.5), num_tokens=3)
    anew, going_on = twin.step(frozenset(), 1)
    assert contents(going_on) == contents(anew)
    assert going_on.batch.rows[0, TOKEN] == 2


def test_another_request_at_the_position_that_follows_does_not_go_on_from_the_last_step() -> None:
    twin = Twin()
    twin.add(SamplingParams(), num_tokens=2)
    twin.add(SamplingParams(), num_tokens=3)
    for skipped in (1, 0):
        anew, going_on = twin.step(frozenset([skipped]), 1)
        assert contents(going_on) == contents(anew)


def test_a_step_that_is_built_again_from_the_same_plan_has_the_same_positions() -> None:
    twin = Twin()
    twin.add(SamplingParams())
    for _ in range(2):
        twin.lengths = [1]
        anew, going_on = twin.step(frozenset(), 1)
        assert contents(going_on) == contents(anew)


@pytest.mark.parametrize(("num_tokens", "samples"), [(1, False), (3, True), (3, False)])
def test_a_step_that_does_more_or_less_than_decode_does_not_go_on_from_the_last_one(
    num_tokens: int, samples: bool
) -> None:
    twin = Twin()
    twin.add(SamplingParams(), num_tokens=6)
    twin.lengths = [1]
    twin.step(frozenset(), 1)
    plans = [StepPlan(), StepPlan()]
    for plan, request in zip(plans, twin.requests[0], strict=True):
        plan.add(request, 2, num_tokens, samples)
    going_on = twin.builder.build(plans[1])
    assert contents(going_on) == contents(build_inputs(plans[0], twin.buffers[0], twin.table))
    # Nor does the next one go on from it.
    twin.lengths = [3]
    anew, going_on = twin.step(frozenset(), 1)
    assert contents(going_on) == contents(anew)


def test_what_a_grammar_changes_in_the_inputs_of_a_step_is_not_there_in_the_next_one() -> None:
    twin = Twin()
    twin.add(SamplingParams(min_tokens=5))
    for _ in range(3):
        anew, going_on = twin.step(frozenset(), 1)
        assert contents(going_on) == contents(anew)
        values_of("min_tokens", going_on.sampling)[:] = 0


def test_the_next_step_of_the_same_requests_has_the_page_table_of_the_last_until_a_page_is_added() -> None:
    twin = Twin()
    for _ in range(3):
        twin.add(SamplingParams())
    tables = []
    for page in (0, 0, 9, 0):
        if page:
            twin.give_page(1, page)
        tables.append(twin.step(frozenset(), 1)[1].batch.page_table)
    assert tables[0] is tables[1]
    assert (tables[1] != tables[2]).sum() == 1
    assert tables[2] is tables[3]


def plan_of(requests: list[Request], start: int) -> StepPlan:
    plan = StepPlan()
    for request in requests:
        plan.add(request, start=start, num_tokens=1, samples=True)
    return plan


@pytest.mark.parametrize("num_withdrawn", [0, 1, 3])
def test_the_step_behind_a_burst_goes_on_where_the_last_computed_step_has_ended(num_withdrawn: int) -> None:
    buffer = SequenceBuffer(NUM_SLOTS, max_model_len=8, max_pages_per_request=2)
    requests = running_requests(buffer, 2)
    builder = InputBuilder(buffer, ShapeTable(NUM_SLOTS, max_num_tiles=1))
    first = plan_of(requests, start=1)
    builder.build(first, num_ahead=3)
    builder.withdraw(first, num_withdrawn)
    last = 4 - num_withdrawn
    next_one = builder.build(plan_of(requests, start=last + 1)).batch.rows[:2]
    assert next_one[:, START].tolist() == [last + 1] * 2
    assert next_one[:, TOKEN].tolist() == [FROM_DEVICE] * 2


def test_a_step_behind_a_burst_that_goes_on_is_as_if_built_anew() -> None:
    buffer = SequenceBuffer(NUM_SLOTS, max_model_len=8, max_pages_per_request=2)
    requests = running_requests(buffer, 2)
    table = ShapeTable(NUM_SLOTS, max_num_tiles=1)
    builder = InputBuilder(buffer, table)
    builder.build(plan_of(requests, start=1), num_ahead=1)
    first = builder.build(plan_of(requests, start=3), num_ahead=2)
    assert buffer.device_token_position[:2].tolist() == [6, 6]
    buffer.device_token_position[:2] = 3
    anew = build_inputs(plan_of(requests, start=3), buffer, table)
    for mine, other in zip((*first.batch.arrays, *first.sampling), (*anew.batch.arrays, *anew.sampling), strict=True):
        assert mine.tolist() == other.tolist()
