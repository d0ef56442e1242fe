"""Budgets for requests on their way to the engine's queue, which has limits of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from server.wire.errors import ApiError

RETRY_AFTER_S = 1


class Preparation:
    """Counts the bytes of bodies that are being read, checked, rendered and tokenised at this moment.

    Beyond the limit a request is refused at once, so that memory stays bounded whatever arrives together. One request
    alone is always let in: its own size has a limit elsewhere. A body counts with the bytes that have arrived, and as
    a request once it is whole: clients that send slowly, or announce much and send nothing, take no room from others.
    """

    def __init__(self, *, max_bytes: int, max_requests: int) -> None:
        self._max_bytes = max_bytes
        self._max_requests = max_requests
        self.num_bytes = 0
        self.num_requests = 0

    @contextmanager
    def receive(self) -> Iterator[Share]:
        """A share that grows while a body arrives; it is given back at the end."""
        share = Share(self)
        try:
            yield share
        finally:
            self.num_bytes -= share.num_bytes
            self.num_requests -= share.is_whole

    @contextmanager
    def hold(self, num_bytes: int) -> Iterator[None]:
        """Keeps a share of the budget while a request whose body has arrived is prepared.

        Raises:
            ApiError: 429, the budget is spent.
        """
        with self.receive() as share:
            share.add(num_bytes)
            share.complete()
            yield

    def refusal(self) -> ApiError:
        """What a client is told when the budget is spent."""
        return ApiError(
            f"{self.num_requests} requests of {self.num_bytes} bytes are being prepared; "
            f"the limits are {self._max_requests} and {self._max_bytes}",
            status=429,
            error_type="rate_limit_error",
            code="too_much_in_preparation",
            headers={"Retry-After": str(RETRY_AFTER_S)},
        )

    def has_room_for(self, num_bytes: int) -> bool:
        """Whether `num_bytes` more are within the limit."""
        return self.num_bytes + num_bytes <= self._max_bytes

    @property
    def has_room(self) -> bool:
        """Whether one more request is within the limit."""
        return self.num_requests < self._max_requests


class Share:
    """What one request takes of a `Preparation`."""

    def __init__(self, budget: Preparation) -> None:
        self._budget = budget
        self.num_bytes = 0
        self.is_whole = False

    def add(self, num_bytes: int) -> None:
        """Counts bytes that have arrived.

        Raises:
            ApiError: 429, the budget is spent.
        """
        is_alone = self._budget.num_bytes == self.num_bytes
        if not is_alone and not self._budget.has_room_for(num_bytes):
            raise self._budget.refusal()
        self.num_bytes += num_bytes
        self._budget.num_bytes += num_bytes

    def complete(self) -> None:
        """Counts the request, whose body is whole now.

        Raises:
            ApiError: 429, the budget is spent.
        """
        if not self._budget.has_room:
            raise self._budget.refusal()
        self.is_whole = True
        self._budget.num_requests += 1
