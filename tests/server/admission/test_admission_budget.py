"""What is being prepared at the same time is bounded."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from server.admission.admission_budget import AdmissionBudget
from server.admission.keyring import NOBODY, work_for
from server.protocol.errors import ApiError


@contextmanager
def working_for(tenant: str) -> Iterator[None]:
    work_for(tenant)
    try:
        yield
    finally:
        work_for(NOBODY)


def test_what_fits_is_let_in_and_given_back():
    budget = AdmissionBudget(max_bytes=100, max_requests=3)
    with budget.hold(50), budget.hold(50):
        assert (budget.num_bytes, budget.num_requests) == (100, 2)
    assert (budget.num_bytes, budget.num_requests) == (0, 0)


def test_too_many_bytes_are_refused_for_now():
    budget = AdmissionBudget(max_bytes=100, max_requests=3)
    with budget.hold(60):
        with pytest.raises(ApiError, match="1 requests of 60 bytes") as caught, budget.hold(41):
            pass
        with budget.hold(40):
            pass
    assert (caught.value.status, caught.value.headers["Retry-After"]) == (429, "1")
    assert budget.num_bytes == 0


def test_too_many_requests_are_refused_for_now():
    budget = AdmissionBudget(max_bytes=100, max_requests=2)
    with ExitStack() as stack:
        stack.enter_context(budget.hold(0))
        stack.enter_context(budget.hold(0))
        with pytest.raises(ApiError, match="the limits are 2"):
            stack.enter_context(budget.hold(0))


def test_a_request_alone_is_never_refused():
    with AdmissionBudget(max_bytes=10, max_requests=1).hold(1000):
        pass


def test_a_failure_gives_its_share_back():
    budget = AdmissionBudget(max_bytes=10, max_requests=1)
    with pytest.raises(ZeroDivisionError), budget.hold(5):
        raise ZeroDivisionError
    assert budget.num_bytes == 0


def test_a_tenant_with_many_requests_is_refused_and_others_are_not():
    budget = AdmissionBudget(max_bytes=10_000, max_requests=8)
    with ExitStack() as stack:
        with working_for("ann"):
            for _ in range(4):
                stack.enter_context(budget.hold(1))
            message = (
                "4 requests of 5 bytes are being prepared, 4 of 5 bytes with this key, which may have half of what "
            )
            with pytest.raises(ApiError, match=message), budget.hold(1):
                pass
        with working_for("bob"):
            for _ in range(2):
                stack.enter_context(budget.hold(1))
    assert (budget.num_bytes, budget.num_requests) == (0, 0)


def test_a_tenant_with_many_bytes_is_refused_and_others_are_not():
    budget = AdmissionBudget(max_bytes=100, max_requests=100)
    with ExitStack() as stack:
        with working_for("ann"):
            stack.enter_context(budget.hold(40))
            stack.enter_context(budget.hold(10))
            with pytest.raises(ApiError, match="2 of 50 bytes"), budget.hold(1):
                pass
        with working_for("bob"), budget.receive() as share:
            for _ in range(50):  # its only one may take what there is, in pieces too
                share.add(1)
            with pytest.raises(ApiError):
                share.add(1)
    assert budget.num_bytes == 0


def test_no_more_than_half_of_the_requests_wait_for_loads():
    budget = AdmissionBudget(max_bytes=100, max_requests=4)
    with budget.wait_for_load(), ExitStack() as stack:
        budget.check_load()
        stack.enter_context(budget.wait_for_load())
        with pytest.raises(ApiError, match="2 requests wait for a model to be loaded; the limit is 2") as caught:
            budget.check_load()
        assert (caught.value.status, caught.value.headers["Retry-After"]) == (429, "1")
        with pytest.raises(ApiError, match="the limit is 2"), budget.wait_for_load():
            pass
    with working_for("ann"), budget.wait_for_load():
        with pytest.raises(ApiError, match="wait for a model to be loaded, 1 with this key, which"):
            budget.check_load()
        work_for("bob")
        budget.check_load()
