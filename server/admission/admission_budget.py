"""Limits that leave a part to other tenants, and the budget of requests that are not yet in the engine's queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from server.admission.keyring import NOBODY, caller
from server.protocol.errors import ApiError

RETRY_AFTER_S = 1


class FairLimit:
    """Counts what tenants hold of a limited resource, such as bytes or connections.

    The first item of a tenant needs only room. A tenant with several may hold half of what the others leave: one takes
    no more than half of the limit, two three quarters, and so on, or all where tenants are not told apart.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._held: dict[str, int] = {}  # by the names of tenants

    def held_by(self, tenant: str) -> int:
        return self._held.get(tenant, 0)

    def has_room_for(self, tenant: str, amount: int = 1, *, had: int = 0) -> bool:
        """Whether the tenant may hold so much more, beside `had` of the same thing, which comes piece by piece."""
        if self.total + amount > self.limit:
            return False
        held = self.held_by(tenant)
        is_first = held == had
        return is_first or tenant == NOBODY or 2 * (held + amount) <= self.limit - (self.total - held)

    def part_of(self, tenant: str) -> str:
        """What a refused tenant should know beside what all hold together; nothing where it is not told from others."""
        return part_of(tenant, str(self.held_by(tenant)))

    def take(self, tenant: str, amount: int = 1) -> None:
        """Counts `amount` for the tenant, whether there is room for it or not."""
        self.total += amount
        self._held[tenant] = self.held_by(tenant) + amount

    def give_back(self, tenant: str, amount: int = 1) -> None:
        self.total -= amount
        self._held[tenant] -= amount
        if not self._held[tenant]:
            del self._held[tenant]

    @contextmanager
    def hold(self, refusal: Callable[[], ApiError], amount: int = 1) -> Iterator[None]:
        """Holds so much, for the running task's tenant, while the context lasts; raises the ApiError of `refusal`."""
        tenant = caller()
        if not self.has_room_for(tenant, amount):
            raise refusal()
        self.take(tenant, amount)
        try:
            yield
        finally:
            self.give_back(tenant, amount)


def part_of(tenant: str, own: str) -> str:
    """As the method, of a tenant that holds `own`."""
    return "" if tenant == NOBODY else f", {own} with this key, which may have half of what others leave"


class AdmissionBudget:
    """Counts the bytes of bodies that are being read, checked, rendered and tokenised at this moment.

    Beyond the limit a request is refused at once, so that memory stays bounded whatever arrives together; one alone is
    always let in. A body counts with the bytes that have arrived, so that slow clients take no room. A tenant takes no
    more than half of what the others leave (`FairLimit`). A load may take minutes, so that no more than half of all
    requests wait for one.
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
    def receive(self) -> Iterator[Reservation]:
        """A share that grows while a body arrives; it is given back at the end."""
        share = Reservation(self, caller())
        try:
            yield share
        finally:
            share.give_back()

    @contextmanager
    def hold(self, num_bytes: int) -> Iterator[None]:
        """Keeps a share of the budget while a request whose body has arrived is prepared; raises ApiError (429)."""
        with self.receive() as share:
            share.add(num_bytes)
            share.complete()
            yield

    @contextmanager
    def wait_for_load(self) -> Iterator[None]:
        """Counts a request while it waits for a model to be loaded; raises ApiError (429) where too many wait."""
        with self._loads.hold(self._refuse_to_wait):
            yield

    def check_load(self) -> None:
        """Raises ApiError: 429, a request that had to wait for a load would be refused."""
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


class Reservation:
    """The bytes and the place that one request holds of an `AdmissionBudget`."""

    def __init__(self, budget: AdmissionBudget, tenant: str) -> None:
        self._budget = budget
        self._tenant = tenant
        self._is_whole = False
        self.num_bytes = 0

    def add(self, num_bytes: int) -> None:
        """Counts bytes that have arrived; raises ApiError (429) where the budget is spent."""
        of_all = self._budget.bytes
        is_alone = of_all.total == self.num_bytes
        if not is_alone and not of_all.has_room_for(self._tenant, num_bytes, had=self.num_bytes):
            raise self._budget.refusal(self._tenant)
        self.num_bytes += num_bytes
        of_all.take(self._tenant, num_bytes)

    def complete(self) -> None:
        """Counts the request, whose body is whole now; raises ApiError (429) where the budget is spent."""
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
