"""What requests are told of their wait for the first token."""

from dataclasses import replace

import pytest

from engine import progress_reports
from engine.interface.types import WaitStage
from engine.loop import Call
from tests.fakes.script import World


@pytest.fixture(autouse=True)
def at_every_turn(monkeypatch):
    monkeypatch.setattr(progress_reports, "INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(progress_reports, "_LEAST_REST", 0)


def run(world, requests, calls=None):
    """Plays the requests, and calls by their turn; returns the reports of each request."""
    reports = {request.request_id: [] for request in requests}

    def watch(events):
        for event in events:
            if event.progress is not None:
                assert not event.token_ids
                assert event.finish_reason is None
                assert event.request.num_output_tokens == 0
                reports[event.request.request_id].append(event.progress)

    world.watchers.append(watch)
    world.run({0: requests, **(calls or {})})
    return reports


def asking(world, name, num_tokens, **params):
    request = world.request(name, [ord(name[0]) % 40 + 1] * num_tokens, **params)
    request.wants_progress = True
    return request


def test_a_long_prompt_is_told_how_far_it_is():
    world = World(1, 200, 4, 800, num_tiles=1, duration=lambda plan: 0.25)
    reports = run(world, [asking(world, "a", 400, max_tokens=3)])["a"]
    processed = [report.num_processed_tokens for report in reports]
    assert processed == sorted(processed)
    assert {64, 128, 192, 256, 320} <= set(processed)
    assert {report.num_prompt_tokens for report in reports} == {400}
    assert reports[-1].stage is WaitStage.PROMPT
    # One tile of 64 tokens a step of a quarter of a second, once a step was measured.
    known = [report for report in reports if report.estimated_seconds is not None]
    assert known
    for report in known:
        left = 400 - report.num_processed_tokens
        assert report.estimated_seconds == pytest.approx(0.25 * left / 64, abs=0.6)
    estimates = [report.estimated_seconds for report in known]
    assert estimates == sorted(estimates, reverse=True)


def test_the_place_in_the_queue_goes_down_to_none():
    world = World(1, 60, 4, 64)
    requests = [asking(world, name, 20, arrival=arrival, max_tokens=4) for arrival, name in enumerate("abcd")]
    requests[2] = replace(requests[2], wants_progress=False)
    reports = run(world, requests)
    assert reports["c"] == []
    of_last = [report.queue_position for report in reports["d"] if report.stage is WaitStage.QUEUED]
    assert of_last[0] == 3
    assert of_last == sorted(of_last, reverse=True)
    assert set(of_last) == {0, 1, 2, 3}
    assert {report.queue_position for report in reports["a"]} == {0}


def test_a_pause_is_told():
    world = World(1, 60, 4, 64)
    calls = {
        turn: [Call(lambda value=value: setattr(world, "is_paused", value))] for turn, value in ((1, True), (6, False))
    }
    reports = run(world, [asking(world, name, 20, arrival=at, max_tokens=9) for at, name in enumerate("ab")], calls)[
        "b"
    ]
    details = [(report.detail, report.estimated_seconds) for report in reports]
    assert ("the engine is paused", None) in details
    assert details[-1][0] is None


def test_what_came_from_the_cache_is_told():
    world = World(1, 120, 4, 300, num_tiles=1)
    first = asking(world, "a", 200, max_tokens=1)
    second = asking(world, "a again", 200, arrival=1, max_tokens=1)
    report = run(world, [first, second])["a again"][-1]
    assert report.stage is WaitStage.PROMPT
    assert 150 < report.num_cached_tokens <= report.num_processed_tokens


def test_nobody_is_told_too_often(monkeypatch):
    monkeypatch.setattr(progress_reports, "INTERVAL_SECONDS", 3600)
    world = World(2, 200, 4, 800, num_tiles=1)
    reports = run(world, [asking(world, name, 300, arrival=arrival) for arrival, name in enumerate("ab")])
    assert [len(told) for told in reports.values()] == [1, 1]


def test_the_first_report_knows_how_long_all_earlier_steps_took():
    world = World(
        num_slots=1, max_model_len=400, num_pages=120, duration=lambda p: 0.01 if sum(p.num_tokens) > 1 else 1.0
    )
    late = asking(world, "b", 10, max_tokens=3)
    reports = []
    world.watchers.append(lambda events: reports.extend(e.progress for e in events if e.progress is not None))
    # Few steps that only decode, of which the pace would hear later by itself.
    world.run({0: [world.request("a", [1] * 100, max_tokens=50, ignore_eos=True)], 6: [late]})
    # The late one waits for the slot of the other, whose steps take a second.
    assert reports[0].stage is WaitStage.QUEUED
    assert reports[0].estimated_seconds > 1
