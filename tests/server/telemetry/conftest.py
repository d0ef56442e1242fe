"""What these tests make their own task's trace ends with them."""

from collections.abc import Iterator

import pytest

from server.telemetry.trace_context import take_over


@pytest.fixture(autouse=True)
def no_trace_stays() -> Iterator[None]:
    """Without it the tests behind these, in the same process, would answer within the last one's trace."""
    yield
    take_over(None)
