"""The open WebSockets of an application, each for its tenant."""

from __future__ import annotations

from collections.abc import Iterator

from aiohttp import web

from server.admission.fair_limit import FairLimit
from server.admission.keyring import caller
from server.protocol.errors import RETRY_AFTER_S, ApiError


class OpenSockets:
    """The sockets, and the limit of their number, of which one tenant has a fair part (`FairLimit`)."""

    def __init__(self, most: int) -> None:
        self._limit = FairLimit(most)
        self._tenants: dict[web.WebSocketResponse, str] = {}

    def __iter__(self) -> Iterator[web.WebSocketResponse]:
        return iter(tuple(self._tenants))

    def __len__(self) -> int:
        return len(self._tenants)

    def check_room(self) -> None:
        """
        Raises:
            ApiError: 429, no more sockets may be opened, or none by the tenant for whom the running task works.
        """
        limit, own = self._limit, self._limit.part_of(caller())
        if limit.has_room_for(caller()):
            return
        bound = f"{own}; the limit of this server is {limit.limit}" if own else ", the limit of this server"
        raise ApiError(
            f"{limit.total} WebSockets are open{bound}; try again later",
            status=429,
            error_type="rate_limit_error",
            code="too_many_websockets",
            headers={"Retry-After": str(RETRY_AFTER_S)},
        )

    def add(self, socket: web.WebSocketResponse) -> None:
        """Counts a socket, which belongs to the tenant for whom the running task works."""
        self._tenants[socket] = caller()
        self._limit.take(caller())

    def discard(self, socket: web.WebSocketResponse) -> None:
        """Counts the socket no longer, if it was counted."""
        tenant = self._tenants.pop(socket, None)
        if tenant is not None:
            self._limit.give_back(tenant)
