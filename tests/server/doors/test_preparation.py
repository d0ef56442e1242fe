"""What is being prepared at the same time is bounded."""

from contextlib import ExitStack

import pytest

from server.doors.preparation import Preparation
from server.wire.errors import ApiError


def test_what_fits_is_let_in_and_given_back():
    budget = Preparation(max_bytes=100, max_requests=3)
    with budget.hold(50), budget.hold(50):
        assert (budget.num_bytes, budget.num_requests) == (100, 2)
    assert (budget.num_bytes, budget.num_requests) == (0, 0)


def test_too_many_bytes_are_refused_for_now():
    budget = Preparation(max_bytes=100, max_requests=3)
    with budget.hold(60):
        with pytest.raises(ApiError, match="1 requests of 60 bytes") as caught, budget.hold(41):
            pass
        with budget.hold(40):
            pass
    assert (caught.value.status, caught.value.headers["Retry-After"]) == (429, "1")
    assert budget.num_bytes == 0


def test_too_many_requests_are_refused_for_now():
    budget = Preparation(max_bytes=100, max_requests=2)
    with ExitStack() as stack:
        stack.enter_context(budget.hold(0))
        stack.enter_context(budget.hold(0))
        with pytest.raises(ApiError, match="the limits are 2"):
            stack.enter_context(budget.hold(0))


def test_a_request_alone_is_never_refused():
    with Preparation(max_bytes=10, max_requests=1).hold(1000):
        pass


def test_a_failure_gives_its_share_back():
    budget = Preparation(max_bytes=10, max_requests=1)
    with pytest.raises(ZeroDivisionError), budget.hold(5):
        raise ZeroDivisionError
    assert budget.num_bytes == 0
