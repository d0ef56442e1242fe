"""Whole responses: JSON bodies, and their sending within limits."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
from aiohttp import web

from server.admission.admission_budget import FairLimit
from server.admission.keyring import caller
from server.http.transport.write_timeout import WriteTimeout
from server.protocol.errors import RETRY_AFTER_S, ApiError
from server.startup.settings import ServerSettings

UNREAD = web.AppKey("unread", FairLimit)  # bytes of large answers that are being sent whole
MAX_UNCOUNTED = 64 << 10  # bytes of an answer that a connection may always keep, as its buffers do


def json_response(body: Any, *, status: int = 200) -> web.Response:
    """An answer with `body` as JSON."""
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


async def send_whole(
    request: web.Request, response: web.Response, settings: ServerSettings, *, is_owed: bool = False
) -> web.Response:
    """Sends an answer; a client that accepts nothing of it for `write_timeout` seconds is cut off.

    One that the engine has computed (`is_owed`) is not refused, and counts within the fair part of its tenant. Raises
    ApiError (429) where too many bytes of large answers wait for clients.
    """

    def cut() -> None:
        if request.transport is not None:
            request.transport.abort()

    async def write(data: bytes) -> None:
        raise AssertionError("a whole answer has one write, its last")

    with _unread(request, response, is_owed=is_owed):
        timeout = WriteTimeout(
            write, cut, ping=b"", ping_interval=settings.ping_interval, write_timeout=settings.write_timeout
        )
        await response.prepare(request)
        async with timeout:
            await timeout.finish(response.write_eof)
    return response


@contextmanager
def _unread(request: web.Request, response: web.Response, *, is_owed: bool) -> Iterator[None]:
    """Counts the bytes of a large answer while the context lasts. One alone is always sent, and so is one owed."""
    limit, num_bytes, tenant = request.app.get(UNREAD), _size(response), caller()
    if limit is None or num_bytes <= MAX_UNCOUNTED or (is_owed and not limit.has_room_for(tenant, num_bytes)):
        yield
        return
    if limit.total and not limit.has_room_for(tenant, num_bytes):
        raise ApiError(
            f"large answers of {limit.total} bytes wait until clients read them{limit.part_of(tenant)}; "
            f"the limit is {limit.limit}",
            status=429,
            error_type="rate_limit_error",
            code="too_much_unread",
            headers={"Retry-After": str(RETRY_AFTER_S)},
        )
    limit.take(tenant, num_bytes)
    try:
        yield
    finally:
        limit.give_back(tenant, num_bytes)


def _size(response: web.Response) -> int:
    return len(response.body) if isinstance(response.body, bytes) else 0
