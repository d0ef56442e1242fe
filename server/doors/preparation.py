"""Budgets for requests on their way to the engine's queue, which has limits of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from server.wire.errors import ApiError

RETRY_AFTER_S = 1


class Preparation:
    """Counts the bytes of bodies that are being read, checked, rendered and tokenised at this moment.

    Beyond the limit a request is refused at once, so that memory stays bounded whatever arrives together. One request
    alone is always let in: its own size has a limit elsewhere.
    """

    def __init__(self, *, max_bytes: int, max_requests: int) -> None:
        self._max_bytes = max_bytes
        self._max_requests = max_requests
        self.num_bytes = 0
        self.num_requests = 0

    @contextmanager
    def hold(self, num_bytes: int) -> Iterator[None]:
        """Keeps a share of the budget while a request is prepared.

        Args:
            num_bytes: of the body, or as many as it may have where that is not known yet.

        Raises:
            ApiError: 429, the budget is spent.
        """
        is_full = self.num_bytes + num_bytes > self._max_bytes or self.num_requests >= self._max_requests
        if self.num_requests and is_full:
            raise ApiError(
                f"{self.num_requests} requests of {self.num_bytes} bytes are being prepared; "
                f"the limits are {self._max_requests} and {self._max_bytes}",
                status=429,
                error_type="rate_limit_error",
                code="too_much_in_preparation",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        self.num_bytes += num_bytes
        self.num_requests += 1
        try:
            yield
        finally:
            self.num_bytes -= num_bytes
            self.num_requests -= 1
