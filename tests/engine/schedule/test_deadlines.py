"""Deadlines of waiting, running and finished requests."""

from __future__ import annotations

import pytest

from engine.schedule.deadlines import Deadlines
from engine.schedule.request import Request, RequestStatus
from sampling.host.params import SamplingParams


def request(deadline: float | None = None, *, in_queue: float | None = None) -> Request:
    return Request(
        f"{deadline} {in_queue}", [1], SamplingParams(), 0, 17, deadline=deadline, queue_deadline=in_queue
    )  # fmt: skip


def expire(deadlines: Deadlines, now: float) -> list[Request]:
    """Ends the requests whose deadline has passed, as the scheduler does."""
    ended = []
    for late in deadlines.pop_expired(now):
        late.status = RequestStatus.FINISHED
        ended.append(late)
    return ended


def test_each_request_expires_once_and_the_soonest_first():
    late, soon, never = request(5.0, in_queue=4.0), request(2.0, in_queue=3.0), request()
    deadlines = Deadlines()
    for each in (late, soon, never):
        deadlines.add(each)
    assert expire(deadlines, 1.9) == []
    assert expire(deadlines, 4.0) == [soon, late]
    assert expire(deadlines, 100.0) == []


def test_a_queue_deadline_does_not_apply_to_an_admitted_request():
    running, waiting = request(9.0, in_queue=1.0), request(9.0, in_queue=1.0)
    running.was_admitted = True
    deadlines = Deadlines()
    deadlines.add(running)
    deadlines.add(waiting)
    assert expire(deadlines, 1.0) == [waiting]
    assert expire(deadlines, 9.0) == [running]


def test_equal_deadlines_expire_in_order_of_arrival():
    deadlines, requests = Deadlines(), [request(1.0) for _ in range(5)]
    for each in requests:
        deadlines.add(each)
    assert expire(deadlines, 1.0) == requests


@pytest.mark.parametrize("num_alive", [0, 100])
def test_deadlines_of_finished_requests_do_not_pile_up(num_alive):
    deadlines, alive = Deadlines(), [request(1e9) for _ in range(num_alive)]
    for each in alive:
        deadlines.add(each)
    for _ in range(5000):
        short = request(1e6, in_queue=1e5)
        deadlines.add(short)
        short.status = RequestStatus.FINISHED
    assert len(deadlines) < 4 * num_alive + 200
    assert expire(deadlines, 1e9) == alive
