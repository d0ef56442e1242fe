"""The access log, and the headers that name a request in its response."""

import time
from collections.abc import Sequence
from urllib.parse import quote

from aiohttp import web

from server.admission.probes import PROBES
from server.protocol.errors import shorten
from server.startup.logs import REQUEST_ID_HEADER, log
from server.telemetry import trace_context

CLIENT_CLOSED_REQUEST = 499  # nginx's number for a client that left; never sent
REQUEST_ID = web.RequestKey("request_id", str)
IGNORED: web.RequestKey[Sequence[str]] = web.RequestKey("ignored", Sequence)
_BEGUN = web.RequestKey("begun", web.StreamResponse)  # the response whose headers were sent
IGNORED_HEADER = "X-Eagre-Ignored"

# Asked every few seconds by machines; their events would bury the others.
_QUIET_ROUTES = PROBES | {"/health", "/metrics"}


def log_access(request: web.Request, response: web.StreamResponse | None, started_at: float) -> None:
    """Logs how a request ended; without a response it was cancelled, because its client has left."""
    begun = request.pop(_BEGUN, None)
    if response is None and begun is not None and begun.body_length:
        response = begun  # its last byte was written before: clients close as soon as they have the whole answer
    write_event = log.debug if request.path in _QUIET_ROUTES else log.info
    resource = request.match_info.route.resource
    write_event(
        "access",
        method=request.method,
        route=resource.canonical if resource is not None else shorten(request.path),
        status=CLIENT_CLOSED_REQUEST if response is None else response.status,
        duration=round(time.perf_counter() - started_at, 6),
    )


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """A response names the request, its trace, and what was ignored of it (an `on_response_prepare` signal)."""
    request[_BEGUN] = response
    if REQUEST_ID in request:
        response.headers[REQUEST_ID_HEADER] = request[REQUEST_ID]
    if (trace_id := trace_context.trace_id()) is not None:
        response.headers[trace_context.TRACE_HEADER] = trace_id
    if request.get(IGNORED):
        response.headers[IGNORED_HEADER] = ", ".join(quote(name, safe="[]") for name in request[IGNORED])
