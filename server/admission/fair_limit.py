"""A counting limit that always leaves a part to other tenants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from server.admission.keyring import NOBODY, caller
from server.protocol.errors import ApiError


class FairLimit:
    """Counts what tenants hold of a limited resource, such as bytes or connections.

    All together hold no more than the limit. The first item of a tenant needs only room. A tenant with several items
    may hold half of what the others leave: one tenant takes no more than half of the limit, two take three quarters,
    and so on. Where tenants are not told apart, all together may hold the whole limit.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._held: dict[str, int] = {}  # by the names of tenants

    def held_by(self, tenant: str) -> int:
        return self._held.get(tenant, 0)

    def has_room_for(self, tenant: str, amount: int = 1, *, had: int = 0) -> bool:
        """Whether the tenant may hold so much more.

        Args:
            had: what it holds already of the same thing, which comes piece by piece.
        """
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
        """Holds so much, for the tenant for whom the running task works, while the context lasts.

        Raises:
            ApiError: that of `refusal`, the tenant may not hold so much more.
        """
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
