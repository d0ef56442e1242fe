"""Which requests count against the limits of a key, and the headers that tell of them."""

from __future__ import annotations

from aiohttp import hdrs, web

from server.api.anthropic.messages import MESSAGES
from server.http.entry.guard import TENANT


def is_counted(method: str, route: str) -> bool:
    """Whether a request is one of those that a key may send so many a second: it makes the server work."""
    return method == hdrs.METH_POST and not route.endswith("/cancel")


async def add_limit_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Says what is left to a limited key (an `on_response_prepare` signal)."""
    tenant = request.get(TENANT)
    if tenant is None or tenant.account is None or not tenant.account.limits.is_limited:
        return
    response.headers.update(tenant.account.headers())
    if request.path.startswith(MESSAGES.path):
        response.headers.update(tenant.account.anthropic_headers())
