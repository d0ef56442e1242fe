"""The timeline: on a clock that the test moves, and in loops on devices whose steps take a known time."""

import gc
import json
import weakref
from collections.abc import Callable

import pytest

from engine.interface.types import STEP_TOKEN_BOUNDS
from engine.timeline import Timeline
from tests.fakes.runner import FakePending, FakeRunner
from tests.fakes.script import World

MARKS_OF_A_STEP = ("schedule", "dispatch", "wait", "commit")


class Clock:
    """Seconds, as the test sets them."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Script:
    """Calls the marks of a timeline at given times; `done_at` is when each step is done, in order of dispatch."""

    def __init__(self, *done_at: float, num_steps: int = 100) -> None:
        self.clock = Clock()
        self.timeline = Timeline(num_steps, self.clock)
        self.done_at = iter(done_at)
        self.num_polls = 0

    def dispatch(self, schedule: float, dispatch: float, dispatched: float, *, has_work: bool = True) -> None:
        done_at = next(self.done_at)

        def is_done() -> bool:
            self.num_polls += 1
            return self.clock.now >= done_at

        self.look_for_work(schedule, has_work=has_work)
        self.at(dispatch).dispatch_began()
        self.at(dispatched).dispatched(is_done, num_rows=2, num_tokens=5)

    def look_for_work(self, schedule: float, *, has_work: bool) -> None:
        """A turn that finds nothing to dispatch ends here."""
        self.at(schedule).schedule_began(has_work=has_work)

    def commit(self, wait: float, commit: float, committed: float, *, has_work: bool = True) -> None:
        self.at(wait).wait_began()
        self.at(commit).commit_began()
        self.at(committed).commit_ended(has_work=has_work)

    def at(self, now: float) -> Timeline:
        self.clock.now = now
        return self.timeline

    @property
    def totals(self) -> tuple[float, float]:
        return self.timeline.device_busy_seconds, self.timeline.device_idle_seconds


def test_a_step_that_is_waited_for_lasts_until_the_wait_returns() -> None:
    script = Script(13.0)
    script.dispatch(10.0, 10.5, 11.0)
    script.commit(11.5, 14.0, 15.0)
    assert script.totals == (3.0, 1.0)  # 11 to 14; idle while the request was being scheduled and dispatched


def test_a_step_that_is_dispatched_before_the_last_one_ends_follows_it_at_once() -> None:
    script = Script(20.0, 30.0)
    script.dispatch(10.0, 10.0, 10.0)
    script.dispatch(12.0, 13.0, 14.0)
    script.commit(14.0, 21.0, 22.0)
    script.look_for_work(23.0, has_work=True)
    script.commit(23.0, 30.0, 31.0)
    assert script.totals == (20.0, 0.0)
    assert [slice_["ts"] for slice_ in device_slices(script.timeline)] == [10e6, 21e6]


def test_a_step_that_is_seen_done_may_have_ended_when_it_was_last_seen_unfinished() -> None:
    script = Script(16.0, 30.0)
    script.dispatch(10.0, 10.0, 10.0)
    script.dispatch(12.0, 15.0, 19.0)  # the first step ended between 15 and 19
    script.commit(20.0, 20.0, 21.0)
    script.commit(21.0, 30.0, 31.0)
    assert script.totals == (5.0 + 11.0, 4.0)
    first, second = device_slices(script.timeline)
    assert (first["ts"], first["dur"], first["args"]["end_unknown_us"]) == (10e6, 5e6, 4e6)
    assert (second["ts"], second["dur"], second["args"]["end_unknown_us"]) == (19e6, 11e6, 0.0)


def test_steps_that_are_withdrawn_leave_no_trace() -> None:
    script = Script(20.0, 30.0, 40.0, 50.0)
    script.dispatch(10.0, 10.0, 10.0)
    for times in (11.0, 12.0, 13.0):
        script.dispatch(times, times, times)
    script.timeline.withdrawn(2)
    script.commit(14.0, 20.0, 21.0)
    script.commit(21.0, 30.0, 31.0)
    script.done_at = iter([60.0])
    script.dispatch(31.0, 32.0, 33.0)
    script.commit(33.0, 60.0, 61.0)
    assert script.totals == (10.0 + 10.0 + 27.0, 3.0)
    assert [slice_["args"]["step"] for slice_ in device_slices(script.timeline)] == [0, 1, 2]
    assert (script.timeline.num_step_tokens, sum(script.timeline.step_token_counts)) == (15, 3)


def test_steps_of_one_program_share_the_time_of_its_dispatch() -> None:
    script = Script(20.0)
    script.dispatch(10.0, 11.0, 12.0)
    script.at(13.0).dispatched(lambda: False, num_rows=2, num_tokens=5)
    script.commit(14.0, 20.0, 21.0)
    script.commit(21.0, 30.0, 31.0)
    marks = [(each.schedule_began, each.dispatch_began, each.dispatched) for each in script.timeline.last_steps(2)]
    assert marks == [(10.0, 11.0, 12.0), (12.0, 12.0, 13.0)]  # so that slices of the trace do not overlap


def test_a_late_wake_up_of_the_host_does_not_hide_idle_time() -> None:
    script = Script(16.0, 20.0, 99.0)
    script.dispatch(10.0, 10.0, 10.0)
    script.dispatch(11.0, 11.0, 12.0)
    script.commit(12.0, 30.0, 31.0)  # the second step is done by 30 too, but the host cannot know since when
    script.dispatch(31.0, 32.0, 33.0)
    script.commit(33.0, 33.0, 34.0)
    script.commit(34.0, 99.0, 99.0)
    assert script.totals == (2.0 + 0.0 + 66.0, 21.0)


def test_a_step_that_was_never_seen_unfinished_counts_as_idle_time() -> None:
    script = Script(0.0, 0.0)
    script.dispatch(10.0, 11.0, 12.0)
    script.commit(12.0, 12.0, 13.0)
    script.dispatch(14.0, 15.0, 16.0)
    script.commit(16.0, 16.0, 17.0)
    assert script.totals == (0.0, 2.0 + 4.0)
    assert script.timeline.recent_idle_fraction == 1.0


def test_no_time_counts_while_there_is_no_request() -> None:
    script = Script(20.0, 120.0)
    script.dispatch(10.0, 10.0, 10.0)
    script.commit(10.0, 20.0, 21.0, has_work=False)
    for turn in range(22, 100):
        script.look_for_work(turn, has_work=False)
    script.dispatch(100.0, 101.0, 102.0)
    script.commit(102.0, 120.0, 121.0)
    assert script.totals == (10.0 + 18.0, 2.0)


def test_time_counts_while_a_request_waits_and_nothing_can_be_planned() -> None:
    script = Script(20.0, 50.0)
    script.dispatch(10.0, 10.0, 10.0)
    script.commit(10.0, 20.0, 21.0)
    script.look_for_work(22.0, has_work=True)
    script.dispatch(30.0, 30.0, 30.0)
    script.commit(30.0, 50.0, 51.0)
    assert script.totals == (10.0 + 20.0, 10.0)


def test_work_that_ends_while_its_step_is_in_flight_no_longer_waits() -> None:
    script = Script(20.0, 50.0)
    script.dispatch(10.0, 10.0, 10.0)
    script.look_for_work(11.0, has_work=False)  # its request has been aborted
    script.commit(12.0, 20.0, 21.0, has_work=False)
    script.dispatch(40.0, 40.0, 40.0)
    script.commit(40.0, 50.0, 51.0)
    assert script.totals == (20.0, 0.0)


def test_a_step_that_is_done_is_not_asked_again() -> None:
    script = Script(0.0)
    script.dispatch(10.0, 11.0, 12.0)
    for turn in range(13, 20):
        script.look_for_work(turn, has_work=True)
    script.commit(20.0, 21.0, 22.0)
    assert script.num_polls == 1


def test_only_the_last_steps_are_remembered_and_the_totals_are_of_all() -> None:
    script = Script(*[0.0] * 3, *[float("inf")] * 7, num_steps=4)
    for step in range(10):
        start = 10.0 * step
        script.dispatch(start, start, start + 2.0)
        script.commit(start + 2.0, start + (2.0 if step < 3 else 8.0), start + 8.0)
    # The first three steps are seen done at once; the others take 6 s each, with 4 s between two of them.
    assert script.totals == (7 * 6.0, 2.0 + 3 * 10.0 + 6 * 4.0)
    assert script.timeline.recent_idle_fraction == 0.4
    assert [slice_["args"]["step"] for slice_ in device_slices(script.timeline)] == [6, 7, 8, 9]
    assert [slice_["args"]["step"] for slice_ in device_slices(script.timeline, 2)] == [8, 9]
    assert device_slices(script.timeline, 0) == []
    assert len(device_slices(script.timeline, 1000)) == 4


def test_a_remembered_step_keeps_nothing_of_the_device_alive() -> None:
    class Arrays:
        def is_done(self) -> bool:
            return True

    timeline, arrays = Timeline(), Arrays()
    alive = weakref.ref(arrays)
    timeline.schedule_began(has_work=True)
    timeline.dispatch_began()
    timeline.dispatched(arrays.is_done, 1, 1)
    timeline.wait_began()
    timeline.commit_began()
    timeline.commit_ended(has_work=False)
    del arrays
    gc.collect()
    assert alive() is None
    assert len(device_slices(timeline)) == 1


def test_before_the_first_step_the_trace_is_empty() -> None:
    timeline = Timeline()
    assert timeline.recent_idle_fraction == 0.0
    assert {event["ph"] for event in timeline.export_trace()} == {"M"}


# ---------------------------------------------------------------- the loops on a device whose time is computed


class ReckonedRunner(FakeRunner):
    """Every step takes the device `step_seconds` and every dispatch takes the host `host_seconds`, exactly."""

    def set_pace(self, clock: Clock, step_seconds: float, host_seconds: float) -> None:
        self.clock, self.step_seconds, self.host_seconds = clock, step_seconds, host_seconds
        self.free_at = 0.0
        self.ends: dict[int, float] = {}
        self.true_idle_seconds = 0.0

    def dispatch(self, plan) -> FakePending:
        self.clock.now += self.host_seconds
        pending = super().dispatch(plan)
        begin = max(self.clock.now, self.free_at)
        self.true_idle_seconds += begin - self.free_at
        self.ends[id(pending)] = self.free_at = begin + self.step_seconds
        return pending

    def result(self, pending: FakePending) -> list[int]:
        self.clock.now = max(self.clock.now, self.ends[id(pending)])
        return super().result(pending)

    def is_done(self, pending: FakePending) -> bool:
        return self.clock.now >= self.ends[id(pending)]


def run_world(make_runner: Callable[..., FakeRunner], clock: Callable[[], float], *, overlap: bool) -> World:
    """One request of 100 tokens, so of 100 steps."""
    world = World(overlap=overlap, num_slots=1, max_model_len=128)
    fake = world.runner
    world.runner = make_runner(fake.buffer, fake.table, fake.num_pages, fake.page_size)
    world.timeline = Timeline(clock=clock)
    outcomes = world.run({0: [world.request("a", [1], max_tokens=100, ignore_eos=True)]})
    assert len(outcomes["a"].token_ids) == 100
    assert world.runner.num_steps == 100
    return world


def run_reckoned(*, overlap: bool, step_seconds: float, host_seconds: float) -> World:
    clock = Clock()

    def make(*args) -> FakeRunner:
        runner = ReckonedRunner(*args)
        runner.set_pace(clock, step_seconds, host_seconds)
        return runner

    return run_world(make, clock, overlap=overlap)


def test_the_overlapped_loop_hides_the_hosts_work_behind_the_device() -> None:
    timeline = run_reckoned(overlap=True, step_seconds=5.0, host_seconds=2.0).timeline
    assert (timeline.device_busy_seconds, timeline.device_idle_seconds) == (500.0, 2.0)  # the first dispatch
    assert timeline.recent_idle_fraction == 0.0


def test_the_synchronous_loop_lets_the_device_wait_for_the_host() -> None:
    timeline = run_reckoned(overlap=False, step_seconds=5.0, host_seconds=2.0).timeline
    assert (timeline.device_busy_seconds, timeline.device_idle_seconds) == (500.0, 200.0)
    assert timeline.recent_idle_fraction == 2 / 7


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("host_seconds", [0.0, 1.0, 5.0, 6.0, 50.0])
def test_idle_time_is_never_understated(overlap: bool, host_seconds: float) -> None:
    world = run_reckoned(overlap=overlap, step_seconds=5.0, host_seconds=host_seconds)
    assert world.timeline.device_idle_seconds >= world.runner.true_idle_seconds
    assert world.timeline.device_busy_seconds <= 500.0
    total = world.timeline.device_idle_seconds + world.timeline.device_busy_seconds
    assert total == pytest.approx(world.runner.true_idle_seconds + 500.0, abs=host_seconds)


# ---------------------------------------------------------------- the trace


@pytest.mark.parametrize("overlap", [True, False])
def test_a_trace_has_a_lane_for_the_device_and_one_for_the_host(overlap: bool) -> None:
    timeline = run_reckoned(overlap=overlap, step_seconds=5.0, host_seconds=2.0).timeline
    events = timeline.export_trace()
    assert json.loads(json.dumps(events, allow_nan=False)) == events
    lanes = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert sorted(lanes.values()) == ["device", "host"]

    slices = [event for event in events if event["ph"] == "X"]
    assert events[-len(slices) :] == slices, "metadata comes first"
    assert len(slices) == 500
    assert all(slice_["dur"] >= 0 for slice_ in slices)
    for lane, name in lanes.items():
        ends = 0.0
        for slice_ in (slice_ for slice_ in slices if slice_["tid"] == lane):
            assert slice_["ts"] >= ends, f"slices of the {name} lane overlap"
            ends = slice_["ts"] + slice_["dur"]

    for step in range(100):
        own = {slice_["name"]: slice_ for slice_ in slices if slice_["args"]["step"] == step}
        assert all((slice_["args"]["rows"], slice_["args"]["tokens"]) == (1, 1) for slice_ in own.values())
        assert {name for name, slice_ in own.items() if lanes[slice_["tid"]] == "host"} == {*MARKS_OF_A_STEP}
        begins = [own[name]["ts"] for name in MARKS_OF_A_STEP]
        assert begins == sorted(begins)
        assert own["dispatch"]["dur"] == 2e6
        assert own["step"]["dur"] == 5e6
        assert own["step"]["ts"] >= own["dispatch"]["ts"] + own["dispatch"]["dur"]


def device_slices(timeline: Timeline, num_steps: int | None = None) -> list[dict]:
    return [event for event in timeline.export_trace(num_steps) if event["name"] == "step"]


def test_steps_are_counted_by_their_tokens() -> None:
    timeline = Timeline()
    for num_tokens in (1, 1, 9, 20000):
        timeline.schedule_began(has_work=True)
        timeline.dispatch_began()
        timeline.dispatched(lambda: False, 1, num_tokens)
        timeline.wait_began()
        timeline.commit_began()
        timeline.commit_ended(has_work=True)
    counts = dict(zip((*STEP_TOKEN_BOUNDS, None), timeline.step_token_counts, strict=True))
    assert (counts[1], counts[8], counts[16], counts[None]) == (2, 0, 1, 1)
    assert timeline.num_step_tokens == 20011
