"""JSON bodies: a request's, read, and an answer's, made."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from server.wire.errors import ApiError, invalid_json


async def read_json(request: web.Request) -> Any:
    """The decoded body, whatever content type it declares.

    Raises:
        ApiError: the body is empty or not JSON.
        web.HTTPRequestEntityTooLarge: the body is over the application's limit.
    """
    try:
        body = await request.read()
    except web.RequestPayloadError as error:
        raise ApiError(
            "the body cannot be decoded; it must be what Content-Encoding says", code="invalid_encoding"
        ) from error
    if not body:
        raise ApiError("the body is empty; it must be a JSON object", code="invalid_json")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise invalid_json(error) from error


def json_response(body: Any, *, status: int = 200) -> web.Response:
    """An answer with `body` as JSON."""
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")
