"""The middleware of every application: request id, admission, errors as responses, access log."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Collection
from contextlib import nullcontext
from http import HTTPStatus

import structlog
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from server.admission.guard import Access
from server.admission.keyring import ANYBODY
from server.api.apis import api_of
from server.http.entry.access_log import REQUEST_ID, log_access
from server.http.entry.error_answers import error_response
from server.http.entry.guard import (
    ADMIN_METHODS,
    ADMIN_PREFIX,
    GUARD,
    PUBLIC_ROUTES,
    SOCKET_ROUTES,
    TENANT,
    answer_preflight,
)
from server.http.entry.key_limits import is_counted
from server.http.entry.served import SERVED
from server.protocol.generation_fields import REQUEST_ID_PATTERN
from server.startup.logs import REQUEST_ID_HEADER, note
from server.telemetry import trace_context

_REQUEST_ID = re.compile(REQUEST_ID_PATTERN)


# The APIs that the application has; it has all where this is not set.
APIS = web.AppKey("apis", Collection[str])


def _is_served(request: web.Request, route: str) -> bool:
    """Whether a route is of an API that the application has, or of none."""
    apis = request.app.get(APIS)
    return apis is None or api_of(route) in (None, *apis)


def _plain_path(request: web.Request) -> str | None:
    """The target without slashes that clients put twice, or behind a path, when they join it to a base; None if it has
    none of them."""
    path, query = request.rel_url.raw_path, request.rel_url.raw_query_string
    plain = "/" + "/".join(filter(None, path.split("/")))
    return None if plain == path else f"{plain}?{query}" if query else plain


@web.middleware
async def enter(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Admits a request as that of a tenant, has it handled, and logs how it ended."""
    started_at = time.perf_counter()
    headers = request.headers
    offered = headers.get(REQUEST_ID_HEADER, "")
    request_id = request[REQUEST_ID] = offered if _REQUEST_ID.fullmatch(offered) else uuid.uuid4().hex
    structlog.contextvars.clear_contextvars()  # of earlier requests on this connection
    structlog.contextvars.bind_contextvars(request_id=request_id)
    if "traceparent" in headers:
        trace_context.take_over(headers["traceparent"], headers.get("tracestate"))
    response: web.StreamResponse | None = None
    try:
        guard = request.app[GUARD]
        # The authority of a target that is a whole URL stands above the Host header (RFC 9112, 3.2.2).
        is_path = request.raw_path.startswith(("/", "*"))
        host = headers.get(hdrs.HOST, "") if is_path else request.url.authority
        if (
            request.method == hdrs.METH_OPTIONS
            and hdrs.ORIGIN in headers
            and hdrs.ACCESS_CONTROL_REQUEST_METHOD in headers
        ):
            response = answer_preflight(request, guard, host)
            return response
        resource = request.match_info.route.resource
        route = request.path if resource is None else resource.canonical
        access = Access.PUBLIC if route in PUBLIC_ROUTES else Access.CLIENT
        if route.startswith(ADMIN_PREFIX) or (request.method, route) in ADMIN_METHODS:
            access = Access.ADMIN
        # A page's plain GET of a route of sockets is refused like its handshake.
        is_socket = route in request.app[SOCKET_ROUTES] or hdrs.UPGRADE in headers
        tenant = request[TENANT] = guard.admit(request.method, host, headers, access, is_socket=is_socket)
        if tenant is not ANYBODY:
            note(tenant=tenant.name)
        if not _is_served(request, route):
            raise web.HTTPNotFound
        if resource is None and (location := _plain_path(request)) is not None:
            response = web.Response(status=HTTPStatus.PERMANENT_REDIRECT, headers={hdrs.LOCATION: location})
            return response
        if tenant.account is not None and access is Access.CLIENT and is_counted(request.method, route):
            tenant.account.begin_request()
            # A front has no generations, which a server counts one by one.
            with nullcontext() if SERVED in request.app else tenant.account.streams():
                response = await handler(request)
        else:
            response = await handler(request)
    except ConnectionError:
        raise  # the client has left; aiohttp knows what to do
    except Exception as error:  # noqa: BLE001 - the client is told, the log has the traceback
        response = error_response(request, error)
    finally:
        log_access(request, response, started_at)
    return response
