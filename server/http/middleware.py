"""Around every HTTP request: its id, its access event, and its errors as JSON."""

from __future__ import annotations

import time

from aiohttp import web
from aiohttp.typedefs import Handler

from server.http.service import SERVICE
from server.startup.logs import REQUEST_ID_HEADER, log, new_request_id, start_request
from server.wire import errors
from server.wire.errors import ApiError, shorten, to_api_error

CLIENT_CLOSED_REQUEST = 499  # nginx's number for a client that left; never sent
REQUEST_ID = web.RequestKey("request_id", str)

# Asked every few seconds by machines; their events would bury the others.
_QUIET_ROUTES = frozenset({"/liveness", "/readiness", "/health", "/metrics"})


@web.middleware
async def request_ids(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Gives the request its id and logs how it ended."""
    request_id = new_request_id(request.headers.get(REQUEST_ID_HEADER))
    request[REQUEST_ID] = request_id
    start_request(request_id)
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


@web.middleware
async def json_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns whatever a route raises before its headers into OpenAI's error body."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        api_error = _from_http(request, error)
    except ConnectionError:
        raise  # the client has left; aiohttp knows what to do
    except Exception as error:  # noqa: BLE001 - the client is told, the log has the traceback
        api_error = to_api_error(error)
        if api_error.status == 500:
            log.exception("request_failed")
    response = web.Response(
        body=api_error.to_json(),
        status=api_error.status,
        headers=api_error.headers,
        content_type="application/json",
    )
    if api_error.headers.get("Connection") == "close":
        response.force_close()
    return response


async def add_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """A response's headers, streamed or not, name the request (an `on_response_prepare` signal)."""
    if REQUEST_ID in request:
        response.headers[REQUEST_ID_HEADER] = request[REQUEST_ID]


def _from_http(request: web.Request, error: web.HTTPException) -> ApiError:
    match error:
        case web.HTTPRequestEntityTooLarge():
            return errors.body_too_large(request.app[SERVICE].settings.max_body_bytes)
        case web.HTTPNotFound():
            return ApiError(f"there is no {shorten(request.path)} here", status=404, code="unknown_url")
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            return ApiError(
                f"{request.path} does not take {request.method}; it takes {allowed}",
                status=405,
                code="method_not_allowed",
                headers={"Allow": allowed},
            )
    return ApiError(error.reason, status=error.status, code="http_error")
