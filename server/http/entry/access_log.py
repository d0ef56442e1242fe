"""Every HTTP request's id, and the event that tells how it ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from urllib.parse import quote

from aiohttp import web
from aiohttp.typedefs import Handler

from server.admission.probes import PROBES
from server.protocol.errors import shorten
from server.startup.logs import REQUEST_ID_HEADER, log, new_request_id, start_request
from server.telemetry import trace_context

CLIENT_CLOSED_REQUEST = 499  # nginx's number for a client that left; never sent
REQUEST_ID = web.RequestKey("request_id", str)
IGNORED: web.RequestKey[Sequence[str]] = web.RequestKey("ignored", Sequence)
IGNORED_HEADER = "X-Eagre-Ignored"

# Asked every few seconds by machines; their events would bury the others.
_QUIET_ROUTES = PROBES | {"/health", "/metrics"}


@web.middleware
async def log_access(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Gives the request its id and logs how it ended."""
    request_id = new_request_id(request.headers.get(REQUEST_ID_HEADER))
    request[REQUEST_ID] = request_id
    start_request(request_id)
    trace_context.take_over(request.headers.get("traceparent"), request.headers.get("tracestate"))
    started_at = time.perf_counter()
    status = CLIENT_CLOSED_REQUEST
    try:
        response = await handler(request)
        status = response.status
        return response
    finally:
        write_event = log.debug if request.path in _QUIET_ROUTES else log.info
        resource = request.match_info.route.resource
        write_event(
            "access",
            method=request.method,
            route=resource.canonical if resource is not None else shorten(request.path),
            status=status,
            duration=round(time.perf_counter() - started_at, 6),
        )


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """A response names the request, its trace, and what was ignored of it (an `on_response_prepare` signal)."""
    if REQUEST_ID in request:
        response.headers[REQUEST_ID_HEADER] = request[REQUEST_ID]
    if (trace_id := trace_context.trace_id()) is not None:
        response.headers[trace_context.TRACE_HEADER] = trace_id
    if request.get(IGNORED):
        response.headers[IGNORED_HEADER] = ", ".join(quote(name, safe="[]") for name in request[IGNORED])
