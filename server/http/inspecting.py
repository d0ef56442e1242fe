"""GET /v1/requests and /v1/requests/{id}: the last requests of all clients, for the administrator.

The guard lets nobody in without an administrator's key.
"""

from aiohttp import web

from server.http.entry.guard import ONE_REQUEST, REQUESTS
from server.http.entry.served import SERVED
from server.http.transport.json_body import json_response, send_whole
from server.protocol.errors import ApiError, shorten
from server.serving.served_models import ServedModels
from server.telemetry.record_json import show, summarise
from server.telemetry.request_log import RequestLog
from server.text.detokenizer import HasTokenTexts

DEFAULT_LIMIT = 50
MAX_LIMIT = 200
MAX_NUMBER = 2**53  # what JavaScript counts exactly


def add_routes(app: web.Application) -> None:
    """GET /v1/requests and /v1/requests/{id}"""
    app.router.add_get(REQUESTS, list_requests)
    app.router.add_get(ONE_REQUEST, show_request)


async def list_requests(request: web.Request) -> web.StreamResponse:
    """The newest first; `?limit=N`, and `&before=N` for those with a smaller number."""
    served = request.app[SERVED]
    limit, before = _number(request, "limit", 1, MAX_LIMIT), _number(request, "before", 0, MAX_NUMBER)
    log = _log_of(served)
    found = log.newest(DEFAULT_LIMIT if limit is None else limit, before)
    body = {
        "object": "list",
        "data": [summarise(record) for record in found],
        "has_more": bool(found) and bool(log.newest(1, found[-1].number)),
        "num_bytes": log.num_bytes,
    }
    return await send_whole(request, json_response(body), served.settings)


async def show_request(request: web.Request) -> web.StreamResponse:
    """One request with the tokens of its prompts and answers, and every event with its time.

    `?number=N` tells apart those that share an id.
    """
    served, request_id = request.app[SERVED], request.match_info["id"]
    record = _log_of(served).find(request_id, _number(request, "number", 0, MAX_NUMBER))
    if record is None:
        raise ApiError(
            f"no request with the id {shorten(request_id)} is kept", status=404, param="id", code="unknown_request"
        )
    body = await served.workers.run(show, record, _tokenizer_of(served, record.model))
    return await send_whole(request, web.Response(body=body, content_type="application/json"), served.settings)


def _log_of(served: ServedModels) -> RequestLog:
    """Raises ApiError: 404, none are kept."""
    if served.request_log is None:
        raise ApiError("no requests are kept; --inspect-requests keeps them", status=404, code="inspector_off")
    return served.request_log


def _tokenizer_of(served: ServedModels, name: str | None) -> HasTokenTexts | None:
    for model in served.all:
        if model.model_name == name and model.is_open:
            return model.tokenizer
    return None


def _number(request: web.Request, name: str, least: int, most: int) -> int | None:
    """A parameter of the address; None where it is not given. Raises ApiError if it is no number within the limits."""
    text = request.query.get(name)
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) <= len(str(most)) and least <= int(text) <= most:
        return int(text)
    raise ApiError(f"{name} is {shorten(text)}; it must be from {least} to {most}", param=name, code="invalid_value")
