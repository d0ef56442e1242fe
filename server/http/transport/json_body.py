"""JSON bodies: a request's, read, and an answer's, made."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
from aiohttp import hdrs, web

from server.admission.admission_budget import Share
from server.admission.caller import caller
from server.admission.fair_limit import FairLimit
from server.http.transport.connections import TURNS
from server.http.transport.http_errors import undecodable, unsupported_encoding
from server.http.transport.write_timeout import WriteTimeout
from server.protocol.errors import RETRY_AFTER_S, ApiError, body_too_large
from server.startup.settings import ServerSettings

UNREAD = web.AppKey("unread", FairLimit)  # bytes of large answers that are being sent whole
MAX_UNCOUNTED = 64 << 10  # bytes of an answer that a connection may always keep, as its buffers do

_PLAIN = ("", "identity")
_DECODED = (*_PLAIN, "gzip", "deflate", "br", "zstd")  # aiohttp refuses what it lacks the library for


async def read_body(request: web.Request, share: Share, settings: ServerSettings) -> bytes:
    """The body, whatever content type it declares; its bytes are counted as they arrive.

    Raises:
        ApiError: the body is empty, encoded in an unknown way, cannot be decoded, is too large or too slow, or the
            budget is spent.
    """
    most = settings.max_body_bytes
    encoding = request.headers.get(hdrs.CONTENT_ENCODING, "").strip().lower()
    if encoding not in _DECODED:
        raise unsupported_encoding(encoding)
    if request.content_length is not None and request.content_length > most:
        raise body_too_large(most)
    body, has_arrived = bytearray(), request.content.is_eof()
    try:
        async with asyncio.timeout(settings.body_timeout):
            while chunk := await request.content.readany():
                share.add(len(chunk))
                body += chunk
                if len(body) > most:
                    raise body_too_large(most)
    except TimeoutError as error:
        raise ApiError(
            f"the body did not arrive within {settings.body_timeout:g} s, the limit of this server",
            status=408,
            code="body_timeout",
            headers={"Connection": "close"},
        ) from error
    except web.RequestPayloadError as error:
        raise (_ends_wrongly() if encoding in _PLAIN else undecodable(encoding)) from error
    if not body:
        raise ApiError("the body is empty; it must be a JSON object", code="invalid_json")
    if not has_arrived:  # the ends of many bodies may come together
        await request.app[TURNS].next()
    return bytes(body)


def _ends_wrongly() -> ApiError:
    return ApiError(
        "the body does not end as its head says, or its chunks are not valid HTTP",
        code="invalid_http",
        headers={"Connection": "close"},
    )


def json_response(body: Any, *, status: int = 200) -> web.Response:
    """An answer with `body` as JSON."""
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


async def send_whole(
    request: web.Request, response: web.Response, settings: ServerSettings, *, is_owed: bool = False
) -> web.Response:
    """Sends an answer; a client that accepts nothing of it for `write_timeout` seconds is cut off.

    Args:
        is_owed: whether the engine has computed the answer. It is not refused, because it would have to be computed
            again, and counts only within the fair part of its tenant, so that it leaves to others what is theirs. What
            the engine computes is bounded by its pace.

    Raises:
        ApiError: 429, too many bytes of large answers wait for clients that do not read them.
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
