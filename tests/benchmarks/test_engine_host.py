"""The figures of a step's host cost add up."""

from __future__ import annotations

import pytest

from benchmarks.engine_host import Meter, costs_between, main, measure
from engine.schedule.request import Request
from engine.schedule.step_plan import StepPlan
from sampling.host.params import SamplingParams
from tests.thoroughness import some


def test_a_cost_is_the_difference_of_two_totals() -> None:
    names = ("schedule", "build", "dispatch", "commit", "wait", "wall", "thread", "idle")
    first = dict(zip(names, (1.0, 1.0, 1.0, 1.0, 1.0, 100.0, 5.0, 7.0), strict=True))
    last = dict(zip(names, (3.0, 5.0, 2.0, 1.0, 11.0, 120.0, 9.0, 12.0), strict=True))
    cost = costs_between(first, last, num_steps=10, step_seconds=1.5)
    assert cost.pop("idle, %") == pytest.approx(100 * 5.0 / 20.0)
    seconds = {"thread": 0.4, "schedule": 0.2, "build": 0.4, "dispatch": 0.1, "commit": 0, "wait": 1.0}
    assert cost == pytest.approx(
        {f"{name}, us": 1e6 * value for name, value in (seconds | {"rest": 0.3, "wall": 2.0}).items()}
    )


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
    assert [marks["idle"] for marks in meter.full_steps] == [0.5]


@pytest.mark.parametrize("overlap", some([True, False], 1))
def test_a_small_run_gives_all_figures(overlap: bool) -> None:
    cost = measure(2, num_steps=10, step_seconds=0.002, overlap=overlap, enable_prefix_caching=True, seed=0)
    assert (
        cost["wall, us"] >= 0.9 * 2000
    )  # a step is not faster than the device, except the last, which may not have begun
    assert 0.0 <= cost.pop("idle, %") < 100
    thread, wall = cost.pop("thread, us"), cost.pop("wall, us")
    assert wall == pytest.approx(sum(cost.values()), rel=1e-6)
    assert min(*(cost[f"{name}, us"] for name in ("schedule", "build", "dispatch", "commit", "rest")), thread) > 0.0


def test_the_command_prints_every_variant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rows", "1", "--step-ms", "0.5", "--steps", "5", "--rounds", "1"]) == 0
    output = capsys.readouterr().out
    for words in ("overlapped", "synchronous", "no cache", "overlapped/no cache", "idle, %"):
        assert words in output
