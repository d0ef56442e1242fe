"""The waiting queue: requests without a slot, in the order in which they may start."""

import heapq
from bisect import insort
from collections.abc import Collection, Iterator
from operator import attrgetter

from engine.schedule.request import Request

OUTPUT_WEIGHT = 2  # an output token costs a step of its own, a prompt token shares one with hundreds

_FEW = 64  # counters of absent tenants that are kept before they are pruned


class WaitingQueue:
    """Priority first; among equal priorities fair shares between tenants; among a tenant's requests arrival.

    Shares are those of a virtual token counter (Sheng et al., "Fairness in Serving Large Language Models", 2024): each
    tenant's counter grows by the tokens computed for it, and the least is next. After a pause a tenant starts at the
    least counter of the active ones, or that of the tenant active last, so that a pause earns no credit.
    """

    def __init__(self) -> None:
        self._by_tenant: dict[str, list[Request]] = {}  # each list sorted by Request.order, none empty
        self._served: dict[str, int] = {}  # the counters, in prompt tokens
        self._num_requests = 0
        self._charged_last: str | None = None

    def __len__(self) -> int:
        return self._num_requests

    def __iter__(self) -> Iterator[Request]:
        """Every request, in no particular order."""
        for requests in self._by_tenant.values():
            yield from requests

    def add(self, request: Request, running: Collection[Request] = ()) -> None:
        """Queues a request; the tenants of `running` are active although they may have nothing in the queue."""
        requests = self._by_tenant.get(request.tenant)
        if requests is None:
            self._welcome(request.tenant, running)
            requests = self._by_tenant[request.tenant] = []
        insort(requests, request, key=attrgetter("order"))
        self._num_requests += 1

    def remove(self, request: Request) -> None:
        """Removes a request from any place; raises ValueError if it is not in the queue."""
        requests = self._by_tenant.get(request.tenant, [])
        requests.remove(request)
        self._num_requests -= 1
        if not requests:
            del self._by_tenant[request.tenant]

    def charge(self, tenant: str, *, num_prompt_tokens: int = 0, num_output_tokens: int = 0) -> None:
        """Counts what the engine computes for a tenant."""
        self._charged_last = tenant
        self._served[tenant] = self._served.get(tenant, 0) + num_prompt_tokens + OUTPUT_WEIGHT * num_output_tokens

    def candidates(self, running: Collection[Request]) -> Iterator[Request]:
        """The requests in the order in which they may start, each once; `running` have output that is not charged yet.

        The caller may remove the request that it was given last, and charge tenants, before it takes the next.
        """
        if len(self._by_tenant) == 1:
            (requests,) = self._by_tenant.values()
            yield from tuple(requests)
            return
        unpaid = _unpaid(running)
        left = {tenant: iter(tuple(requests)) for tenant, requests in self._by_tenant.items()}
        heads = {tenant: next(requests) for tenant, requests in left.items()}
        while heads:
            tenant = min(
                heads,
                key=lambda name: (
                    heads[name].priority,
                    self._served.get(name, 0) + unpaid.get(name, 0),
                    heads[name].arrival,
                ),
            )
            yield heads[tenant]
            following = next(left[tenant], None)
            if following is None:
                del heads[tenant]
            else:
                heads[tenant] = following

    def forecast(self, running: Collection[Request]) -> Iterator[Request]:
        """The requests in the order in which they will start if nothing more comes, each once.

        Unlike `candidates`, it charges each tenant for the prompts of its earlier requests, as their starts will do.
        """
        unpaid = _unpaid(running)
        left = {tenant: iter(tuple(requests)) for tenant, requests in self._by_tenant.items()}
        heads: list[tuple[int, int, int, str, Request]] = []

        def push(tenant: str, served: int) -> None:
            request = next(left[tenant], None)
            if request is not None:
                heapq.heappush(heads, (request.priority, served, request.arrival, tenant, request))

        for tenant in left:
            push(tenant, self._served.get(tenant, 0) + unpaid.get(tenant, 0))
        while heads:
            _, served, _, tenant, request = heapq.heappop(heads)
            yield request
            push(tenant, served + request.num_prompt_tokens)

    def _welcome(self, tenant: str, running: Collection[Request]) -> None:
        active = {*self._by_tenant, *(request.tenant for request in running)} - {tenant}
        compared = active or ({self._charged_last} if self._charged_last is not None else set())
        if compared:
            floor = min(self._served.get(name, 0) for name in compared)
            self._served[tenant] = max(self._served.get(tenant, 0), floor)
        if len(self._served) > _FEW + 2 * len(active):  # tenants that are gone
            self._served = {name: self._served[name] for name in {*compared, tenant} if name in self._served}


def _unpaid(running: Collection[Request]) -> dict[str, int]:
    """The output of each tenant's running requests that is not charged yet, in prompt tokens."""
    unpaid: dict[str, int] = {}
    for request in running:
        unpaid[request.tenant] = unpaid.get(request.tenant, 0) + OUTPUT_WEIGHT * request.num_uncharged_tokens
    return unpaid
