"""Budgets for requests that are being read, checked and tokenised; the engine's queue has limits of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from server.admission.fair_limit import FairLimit, part_of
from server.admission.keyring import NOBODY, caller
from server.protocol.errors import ApiError

RETRY_AFTER_S = 1


class AdmissionBudget:
    """Counts the bytes of bodies that are being read, checked, rendered and tokenised at this moment.

    Beyond the limit a request is refused at once, so that memory stays bounded whatever arrives together. One request
    alone is always let in: its own size has a limit elsewhere. A body counts with the bytes that have arrived, and as
    a request once it is whole: clients that send slowly, or announce much and send nothing, take no room from others.

    A tenant takes no more than half of what the others leave (`FairLimit`), so that what waits long, for a grammar or
    for an embedding, is refused to who has much of it, and not to others. A load may take minutes, so that no more
    than half of all requests wait for one, whoever they come from.
    """

    def __init__(self, *, max_bytes: int, max_requests: int) -> None:
        self.bytes = FairLimit(max_bytes)
        self.requests = FairLimit(max_requests)
        self._loads = FairLimit(max(1, max_requests // 2))

    @property
    def num_bytes(self) -> int:
        return self.bytes.total

    @property
    def num_requests(self) -> int:
        return self.requests.total

    @contextmanager
    def receive(self) -> Iterator[Share]:
        """A share that grows while a body arrives; it is given back at the end."""
        share = Share(self, caller())
        try:
            yield share
        finally:
            share.give_back()

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

    @contextmanager
    def wait_for_load(self) -> Iterator[None]:
        """Counts a request while it waits for a model to be loaded.

        Raises:
            ApiError: 429, too many wait.
        """
        with self._loads.hold(self._refuse_to_wait):
            yield

    def check_load(self) -> None:
        """
        Raises:
            ApiError: 429, a request that had to wait for a load would be refused.
        """
        if not self._loads.has_room_for(caller()):
            raise self._refuse_to_wait()

    def refusal(self, tenant: str = NOBODY) -> ApiError:
        """What a client is told when the budget is spent, or the part of it that its tenant may have."""
        own = f"{self.requests.held_by(tenant)} of {self.bytes.held_by(tenant)} bytes"
        return _too_much(
            f"{self.num_requests} requests of {self.num_bytes} bytes are being prepared{part_of(tenant, own)}; "
            f"the limits are {self.requests.limit} and {self.bytes.limit}"
        )

    def _refuse_to_wait(self) -> ApiError:
        return _too_much(
            f"{self._loads.total} requests wait for a model to be loaded{self._loads.part_of(caller())}; "
            f"the limit is {self._loads.limit}"
        )


class Share:
    """The bytes and the place that one request holds of an `AdmissionBudget`."""

    def __init__(self, budget: AdmissionBudget, tenant: str) -> None:
        self._budget = budget
        self._tenant = tenant
        self._is_whole = False
        self.num_bytes = 0

    def add(self, num_bytes: int) -> None:
        """Counts bytes that have arrived.

        Raises:
            ApiError: 429, the budget is spent.
        """
        of_all = self._budget.bytes
        is_alone = of_all.total == self.num_bytes
        if not is_alone and not of_all.has_room_for(self._tenant, num_bytes, had=self.num_bytes):
            raise self._budget.refusal(self._tenant)
        self.num_bytes += num_bytes
        of_all.take(self._tenant, num_bytes)

    def complete(self) -> None:
        """Counts the request, whose body is whole now.

        Raises:
            ApiError: 429, the budget is spent.
        """
        if not self._budget.requests.has_room_for(self._tenant):
            raise self._budget.refusal(self._tenant)
        self._is_whole = True
        self._budget.requests.take(self._tenant)

    def give_back(self) -> None:
        """Gives back all that it has taken."""
        if self.num_bytes:
            self._budget.bytes.give_back(self._tenant, self.num_bytes)
        if self._is_whole:
            self._budget.requests.give_back(self._tenant)


def _too_much(message: str) -> ApiError:
    return ApiError(
        message,
        status=429,
        error_type="rate_limit_error",
        code="too_much_in_preparation",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )
