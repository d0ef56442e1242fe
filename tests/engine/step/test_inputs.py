"""The arrays of a step beside its real rows: what stands in the padding, and where the arrays lie."""

from engine.kernels.interface.token_layout import NUM_TOKENS, SLOT, START, TOKEN
from engine.schedule.request import Request
from engine.schedule.sequence_buffer import SequenceBuffer
from engine.schedule.step_plan import StepPlan
from engine.step.batch import FROM_DEVICE
from engine.step.inputs import build_inputs
from engine.step.shapes import ShapeTable
from sampling.host.params import SamplingParams
from sampling.host.rows import Level, SamplingRows

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
    assert inputs.level is Level.RANDOM


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
    before = [array.copy() for array in (*first.batch, *first.sampling)]
    for array in (*second.batch, *second.sampling, buffer.page_table, *buffer.sampling):
        array += 1
    assert all((array == old).all() for array, old in zip((*first.batch, *first.sampling), before, strict=True))
    assert first.batch.page_table.ctypes.data % 64 == 0
