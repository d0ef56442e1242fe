"""Bursts in the loop: steps planned ahead, which are withdrawn where something comes between them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from engine.interface.types import FinishReason
from engine.loop import Abort, Call, Shutdown
from engine.schedule.step_plan import StepPlan
from tests.fakes.runner import expected_output
from tests.fakes.script import World


class Recorded(World):
    """A world that notes which requests each step computes, from which position, in the order of the device."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.steps: list[dict[str, int]] = []
        self.runner.on_execute = self._note

    def _note(self, plan: StepPlan) -> None:
        self.steps.append({r.request_id: start for r, start in zip(plan.requests, plan.starts, strict=True)})

    def steps_of(self, name: str) -> list[int]:
        return [step[name] for step in self.steps if name in step]


def prompt_that_stops(num_tokens: int) -> tuple[list[int], list[int]]:
    """A prompt whose output ends after so many tokens, and that output."""
    prompts = ([i % 39 + 1, i % 7 + 1, 9] for i in range(1, 400))
    return next((p, output) for p in prompts if len(output := expected_output(p, 0, 40)) == num_tokens)


def test_steps_of_a_request_that_is_alone_are_few_programs() -> None:
    world = Recorded(max_burst_steps=4)
    outcomes = world.run({0: [world.request("a", [5, 6, 7], max_tokens=9, ignore_eos=True)]})
    assert outcomes["a"].token_ids == expected_output([5, 6, 7], 0, 12, ignore_eos=True)
    assert world.runner.num_steps == 3  # the prompt's and two bursts of four
    assert len(world.steps) == world.scheduler.counters.num_steps == 9
    assert world.runner.num_cut == 0


def test_each_token_of_a_burst_is_published_by_itself() -> None:
    world = World(max_burst_steps=16)
    turns: list[int] = []
    world.watchers.append(lambda events: turns.append(sum(len(event.token_ids) for event in events)))
    world.run({0: [world.request("a", [5, 6, 7], max_tokens=9, ignore_eos=True)]})
    assert [num_tokens for num_tokens in turns if num_tokens] == [1] * 9


@pytest.mark.parametrize("lead", [0, 1, 2])
def test_a_request_that_arrives_in_a_burst_is_in_the_step_behind_the_one_that_the_device_is_at(lead: int) -> None:
    world = Recorded(max_burst_steps=16, lead=lambda: lead)
    a = world.request("a", [5, 6, 7], max_tokens=20, ignore_eos=True)
    b = world.request("b", [9, 8], max_tokens=3, ignore_eos=True, arrival=1)
    done: list[int] = []  # steps, when the request came
    add = world.scheduler.add
    world.scheduler.add = lambda request: (done.append(len(world.steps)), add(request))  # type: ignore[method-assign, assignment, func-returns-value]
    outcomes = world.run({0: [a], 6: [b]})
    first = next(index for index, step in enumerate(world.steps) if "b" in step)
    assert first <= done[1] + lead + 1
    assert world.runner.num_cut > 0
    for request in (a, b):
        prompt = request.token_ids[: request.num_prompt_tokens]
        expected = expected_output(prompt, 0, request.max_length, ignore_eos=True)
        assert outcomes[request.request_id].token_ids == expected
    assert len(world.steps) == world.scheduler.counters.num_steps


def test_no_step_is_computed_twice_or_left_out_where_bursts_are_cut() -> None:
    world = Recorded(max_burst_steps=16, num_pages=60, lead=iter([0, 2, 1, 0, 3] * 9).__next__)
    turns = {turn: [Call(lambda: None)] for turn in (3, 5, 6, 11, 12)}
    turns[0] = [world.request("a", [5, 6, 7], max_tokens=30, ignore_eos=True)]
    outcomes = world.run(turns)
    assert outcomes["a"].token_ids == expected_output([5, 6, 7], 0, 33, ignore_eos=True)
    assert world.steps_of("a") == [0, *range(3, 32)]
    assert world.runner.num_cut > 0


def test_the_end_of_a_request_cuts_the_burst_and_wastes_one_step_at_most() -> None:
    prompt, output = prompt_that_stops(num_tokens=5)
    world = Recorded(max_burst_steps=16, page_size=1, num_pages=60)
    outcomes = world.run({0: [world.request("a", prompt, max_tokens=30)]})
    assert outcomes["a"].token_ids == output
    assert outcomes["a"].finish_reason is FinishReason.STOP
    assert len(world.steps) == 6  # one more than the output has tokens
    assert world.pool.num_cached == len(prompt) + 4


def test_an_abort_cuts_the_burst() -> None:
    world = Recorded(max_burst_steps=16)
    outcomes = world.run({0: [world.request("a", [5, 6, 7], max_tokens=40, ignore_eos=True)], 5: [Abort("a")]})
    assert outcomes["a"].finish_reason is FinishReason.ABORT
    assert len(world.steps) <= len(outcomes["a"].token_ids) + 2


def test_rows_that_end_at_different_times_share_bursts_until_then() -> None:
    world = Recorded(max_burst_steps=16, num_pages=80)
    names = {"a": 5, "b": 12, "c": 30}
    requests = [
        world.request(name, [index + 1, 7], max_tokens=count, ignore_eos=True, arrival=index)
        for index, (name, count) in enumerate(names.items())
    ]
    outcomes = world.run({0: requests})
    for request in requests:
        expected = expected_output(request.token_ids[:2], 0, request.max_length, ignore_eos=True)
        assert outcomes[request.request_id].token_ids == expected
    assert len(world.steps) == 31  # a step has two prompts; none is wasted, because lengths are known
    assert world.runner.num_cut == 0
    assert world.runner.num_steps < 9


def test_nothing_is_planned_ahead_while_another_request_could_start() -> None:
    world = World(max_burst_steps=16)
    scheduler = world.scheduler
    scheduler.add(world.request("a", [5, 6, 7], max_tokens=20, ignore_eos=True))
    assert scheduler.schedule() is not None
    plan = scheduler.schedule()
    assert plan is not None
    scheduler.add(world.request("b", [5, 6, 7], max_tokens=20, ignore_eos=True, arrival=1))
    assert scheduler.plan_ahead(plan, 15) == []


def test_requests_that_wait_for_a_slot_hinder_no_burst() -> None:
    world = Recorded(num_slots=1, max_burst_steps=16)
    a = world.request("a", [5, 6, 7], max_tokens=17, ignore_eos=True)
    b = world.request("b", [7, 6], max_tokens=17, ignore_eos=True, arrival=1)
    outcomes = world.run({0: [a, b]})
    assert all(len(outcome.token_ids) == 17 for outcome in outcomes.values())
    assert world.runner.num_steps == 4  # of each a prompt and a burst


@pytest.mark.parametrize("lead", [0, 1, 2])
def test_a_request_that_waits_for_the_slot_of_one_that_has_stopped_starts_when_it_is_free(lead: int) -> None:
    prompt, output = prompt_that_stops(num_tokens=5)
    world = Recorded(num_slots=2, num_pages=90, max_burst_steps=16, lead=lambda: lead)
    a = world.request("a", prompt, max_tokens=30)
    b = world.request("b", [7, 6], max_tokens=50, ignore_eos=True, arrival=1)
    c = world.request("c", [3, 9, 4], max_tokens=6, ignore_eos=True, arrival=2)
    outcomes = world.run({0: [a, b, c]})
    assert outcomes["a"].token_ids == output
    last = max(index for index, step in enumerate(world.steps) if "a" in step)
    first = min(index for index, step in enumerate(world.steps) if "c" in step)
    assert first <= last + 2  # the next step was planned before the host had the last result that names the slot
    assert max(map(len, world.steps)) == 2


def test_a_burst_gives_way_to_steps_of_another_model() -> None:
    world = Recorded(max_burst_steps=16, num_pages=60)
    others = [1, 2, 3, 5, 6, 20]  # turns, after which another loop begins, and ends, to have steps in flight
    turns: list[int] = []

    def watch(events: object) -> None:
        turns.append(len(world.steps))
        if len(turns) in others:
            world.busy_loops ^= {"another"}

    world.watchers.append(watch)
    outcomes = world.run({0: [world.request("a", [5, 6, 7], max_tokens=40, ignore_eos=True)]})
    assert outcomes["a"].token_ids == expected_output([5, 6, 7], 0, 43, ignore_eos=True)
    assert world.runner.num_cut > 0
    # Of 39 steps that decode, those from the sixth turn to the twentieth are programs of their own.
    assert 14 <= world.runner.num_steps <= 24
    assert len(world.steps) == world.scheduler.counters.num_steps
    assert world.busy_loops == set()


def test_a_loop_that_fails_with_steps_in_flight_keeps_no_other_from_bursts() -> None:
    world = World(max_burst_steps=16)

    def fail(plan: StepPlan) -> None:
        raise RuntimeError("the device is on fire")

    world.runner.on_execute = fail
    with pytest.raises(RuntimeError, match="on fire"):
        world.run({0: [world.request("a", [5, 6, 7], max_tokens=9, ignore_eos=True)]})
    assert world.busy_loops == set()


def test_shutdown_in_a_burst_waits_for_no_step_that_has_not_begun() -> None:
    world = Recorded(max_burst_steps=16, num_pages=60)
    outcomes = world.run({0: [world.request("a", [5, 6, 7], max_tokens=40, ignore_eos=True)], 5: [Shutdown()]})
    assert outcomes["a"].finish_reason is FinishReason.ABORT
    assert len(world.steps) <= len(outcomes["a"].token_ids) + 2


def test_a_row_with_features_is_sampled_step_by_step() -> None:
    world = World(max_burst_steps=16)
    request = world.request("a", [5, 6, 7], max_tokens=9, ignore_eos=True, presence_penalty=0.5)
    world.scheduler.add(request)
    plans = [world.scheduler.schedule() for _ in range(2)]
    assert plans[1] is not None
    assert world.scheduler.plan_ahead(plans[1], 15) == []


def test_steps_ahead_take_no_more_pages_than_there_are() -> None:
    """Rows whose pages have no room for a whole burst have a shorter one, and nobody is preempted for it."""
    world = Recorded(num_slots=2, num_pages=9, page_size=4, max_burst_steps=16)  # a null page and eight others
    requests = [
        world.request(name, [index + 1, 7], max_tokens=13, ignore_eos=True, arrival=index)
        for index, name in enumerate("ab")
    ]
    outcomes = world.run({0: requests})
    assert all(len(outcome.token_ids) == 13 for outcome in outcomes.values())
    assert world.scheduler.counters.num_preemptions == 0


def test_what_is_withdrawn_is_as_if_it_had_never_been_planned() -> None:
    world = World(max_burst_steps=16)
    scheduler, request = world.scheduler, world.request("a", [5, 6, 7], max_tokens=30, ignore_eos=True)
    scheduler.add(request)
    scheduler.schedule()
    plan = scheduler.schedule()
    assert plan is not None

    def state() -> tuple[int, ...]:
        return (
            request.num_computed_tokens, request.num_in_flight_steps, request.num_in_flight_tokens,
            request.num_tokens,
        )  # fmt: skip

    before = state()
    ahead = scheduler.plan_ahead(plan, 15)
    assert [later.starts[0] - earlier.starts[0] for earlier, later in pairwise([plan, *ahead])] == [1] * 15
    assert state() == (4 + 15, 2 + 15, 2 + 15, 3 + 2 + 15)
    for each in reversed(ahead):
        scheduler.withdraw(each)
    assert state() == before
