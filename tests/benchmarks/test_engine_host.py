"""The figures of a step's host cost add up."""

from __future__ import annotations

import pytest

from benchmarks.engine_host import HostCost, Marks, Meter, main, measure
from engine.schedule.request import Request
from engine.schedule.step_plan import StepPlan
from sampling.host.params import SamplingParams
from tests.thoroughness import some


def test_a_cost_is_the_difference_of_two_marks() -> None:
    first = Marks(schedule=1.0, build=1.0, dispatch=1.0, commit=1.0, wait=1.0, wall=100.0, thread=5.0, idle=7.0)
    last = Marks(schedule=3.0, build=5.0, dispatch=2.0, commit=1.0, wait=11.0, wall=120.0, thread=9.0, idle=12.0)
    cost = HostCost.between(first, last, num_steps=10, step_seconds=1.5)
    assert cost.idle == pytest.approx(5.0 / 20.0)
    assert cost.thread == pytest.approx(0.4)
    assert (cost.schedule, cost.build, cost.dispatch, cost.commit, cost.wait) == pytest.approx((0.2, 0.4, 0.1, 0, 1.0))
    assert cost.rest == pytest.approx(0.3)
    assert cost.step == pytest.approx(2.0)


def test_figures_are_in_percent_and_microseconds() -> None:
    figures = HostCost(*([0.5] * 9)).figures()
    assert figures["idle, %"] == 50
    assert figures["thread"] == figures["step"] == 500_000


def test_only_steps_in_which_every_row_decodes_are_marked() -> None:
    meter = Meter(num_rows=2)
    requests = [Request(name, [1, 2], SamplingParams(), seed=0, max_length=9) for name in "ab"]
    one, prompt, both = StepPlan(), StepPlan(), StepPlan()
    one.add(requests[0], 2, 1, samples=True)
    prompt.add(requests[0], 2, 1, samples=True)
    prompt.add(requests[1], 0, 2, samples=True)
    for request in requests:
        both.add(request, 2, 1, samples=True)
    for plan in (one, prompt, both):
        meter.mark(plan, idle=0.5)
    assert [marks.idle for marks in meter.full_steps] == [0.5]


@pytest.mark.parametrize("overlap", some([True, False], 1))
def test_a_small_run_gives_all_figures(overlap: bool) -> None:
    cost = measure(2, num_steps=10, step_seconds=0.002, overlap=overlap, enable_prefix_caching=True, seed=0)
    assert cost.step >= 0.9 * 0.002  # a step is not faster than the device, except the last, which may not have begun
    assert 0.0 <= cost.idle < 1.0
    assert cost.step == pytest.approx(
        cost.schedule + cost.build + cost.dispatch + cost.commit + cost.rest + cost.wait, rel=1e-6
    )
    assert min(cost.schedule, cost.build, cost.dispatch, cost.commit, cost.rest, cost.thread) > 0.0


def test_the_command_prints_every_variant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rows", "1", "--step-ms", "0.5", "--steps", "5", "--rounds", "1"]) == 0
    output = capsys.readouterr().out
    for words in ("overlapped", "synchronous", "no cache", "overlapped/no cache", "idle, %"):
        assert words in output
