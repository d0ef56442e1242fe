"""Converts an exception that a handler raises before it sends headers into the route's error response."""

from collections.abc import Mapping

import orjson
from aiohttp import web

from server.api.openai.openai_objects import error_object
from server.api.route import ErrorShape
from server.http.entry.access_log import REQUEST_ID
from server.http.entry.guard import TENANT
from server.http.entry.served import SERVED
from server.http.transport.request_paths import IS_UNVERSIONED
from server.protocol.errors import (
    EXCEED_CONTEXT_SIZE,
    ApiError,
    ContextLengthExceeded,
    body_too_large,
    shorten,
    unavailable,
)
from server.startup.logs import failure_of, log
from server.storage.database import StoreError, TooLarge

# By the path that the route is registered under. Every other path has OpenAI's.
ERROR_SHAPES = web.AppKey("error_shapes", Mapping[str, ErrorShape])
# Routes whose refused requests are worth a record, where records are kept.
GENERATING = web.AppKey("generating", frozenset[str])

# What there is in the place of methods that other servers have, as the end of a message.
_INSTEAD: Mapping[tuple[str, str], str] = {
    ("POST", "/lora-adapters"): (
        ". Adapters have no scales for all clients here: a request chooses one by its name in model, or by its id with "
        "a scale in lora"
    )
}


def error_response(request: web.Request, error: Exception) -> web.Response:
    """Builds the response to an exception raised before the headers, inside `except`; a redirect is raised again."""
    if isinstance(error, web.HTTPException):
        if error.status < 400:
            raise error
        return _answer(request, _from_http(request, error))
    if isinstance(error, StoreError):
        may_log = SERVED not in request.app or request.app[SERVED].store.may_log()
        return _answer(request, _from_store(error, may_log=may_log))
    return _answer(request, failure_of(error, "request_failed"))


def _answer(request: web.Request, api_error: ApiError) -> web.Response:
    """Builds the response to `api_error`; a refused generation also gets a record in the request log.

    It is a function because a variable of one that the error was raised through would keep both alive until a
    collection.
    """
    resource = request.match_info.route.resource
    path = request.path if resource is None else resource.canonical  # None: no route fits
    request_log = request.app[SERVED].request_log if SERVED in request.app else None  # a front has none
    if request_log is not None and TENANT in request and request.method == "POST" and path in request.app[GENERATING]:
        request_log.refuse(request[REQUEST_ID], request[TENANT].name, path, api_error)
    shape = request.app[ERROR_SHAPES].get(path, error_object)
    body = shape(api_error, request[REQUEST_ID])
    if isinstance(api_error, ContextLengthExceeded) and shape is error_object and request.get(IS_UNVERSIONED):
        body["error"]["type"] = EXCEED_CONTEXT_SIZE
    response = web.Response(
        body=orjson.dumps(body),
        status=api_error.status,
        headers=api_error.headers,
        content_type="application/json",
    )
    if api_error.headers.get("Connection") == "close":
        response.force_close()
    return response


def _from_store(error: StoreError, *, may_log: bool) -> ApiError:
    """Returns 413 for a record that is too large, and 503 for a failed store, whose cause belongs in the log."""
    if isinstance(error, TooLarge):
        return ApiError(str(error), status=413, code="record_too_large")
    if may_log:
        log.error("store_failed", reason=str(error))
    return unavailable("the server's store cannot be used; with store=false a response needs none", "store_failed")


def _from_http(request: web.Request, error: web.HTTPException) -> ApiError:
    match error:
        case web.HTTPRequestEntityTooLarge():
            return body_too_large(request.client_max_size)
        case web.HTTPNotFound():
            return ApiError(f"there is no {shorten(request.path)} here", status=404, code="unknown_url")
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            more = _INSTEAD.get((request.method, request.path), "")
            return ApiError(
                f"{request.path} does not take {request.method}; it takes {allowed}{more}",
                status=405,
                code="method_not_allowed",
                headers={"Allow": allowed},
            )
    return ApiError(error.reason, status=error.status, code="http_error")
