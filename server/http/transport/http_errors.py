"""JSON error responses to requests that are refused before they reach the application.

aiohttp answers such requests by itself, in plain text. Which route they were for is not known then, so that the shape
is always OpenAI's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import orjson
from aiohttp import hdrs, web
from aiohttp.http_exceptions import (
    ContentEncodingError,
    HttpProcessingError,
    InvalidURLError,
    LineTooLong,
)

from server.admission.loop_throttle import LoopThrottle
from server.admission.probes import PROBES, prober
from server.api.openai.openai_objects import error_object
from server.http.transport.aiohttp_internals import (
    bare_transport,
    end_refused_body,
    request_in_progress,
    untie_connection,
    untie_error,
    untie_transport,
    untie_unmatched,
)
from server.protocol.errors import ApiError, shorten, to_api_error
from server.startup.logs import REQUEST_ID_HEADER, log, new_request_id

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Connection(web.RequestHandler):
    """One client's connection. It answers invalid HTTP with a JSON error, too."""

    __slots__ = ("_bare_transport", "_probe_turns", "_turns")

    def __init__(self, manager: web.Server, *, turns: LoopThrottle, probe_turns: LoopThrottle, **options: Any) -> None:
        """Args:
        turns: of the loop, which all requests wait for, also those that the parser has refused.
        probe_turns: for which probes wait in their place. Their answers are known already, and an orchestrator that
            waits long for one restarts the process. The addresses they come from take turns, because a probe wants no
            key: however many one sends, another's waits for one of them at most.
        """
        super().__init__(manager, **options)
        self._turns = turns
        self._probe_turns = probe_turns
        self._bare_transport: asyncio.BaseTransport | None = None

    def data_received(self, data: bytes) -> None:
        """Parses received bytes. If they end a body wrongly, the handler that reads it gets the error."""
        super().data_received(data)
        request = request_in_progress(self)
        if request is not None:
            end_refused_body(self, request)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins to serve the client at the other end of `transport`."""
        self._bare_transport = bare_transport(transport)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Drops the references that would keep this connection until a garbage collection."""
        super().connection_lost(exc)
        untie_connection(self)
        untie_transport(self._bare_transport)
        self._bare_transport = None

    async def start(self) -> None:
        """The body of the connection's task."""
        try:
            await super().start()
        except asyncio.CancelledError as error:
            # The task keeps it, and aiohttp's function that it came through may have the task in a variable.
            error.with_traceback(None)
            raise

    def log_exception(self, *told: Any, **options: Any) -> None:
        """Logs an error of the connection, and then removes its traceback."""
        super().log_exception(*told, **options)
        error = options.get("exc_info")
        if isinstance(error, BaseException):
            untie_error(error)

    async def _handle_request(
        self,
        request: web.BaseRequest,
        start_time: float | None,
        request_handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
    ) -> tuple[web.StreamResponse, bool]:
        """Handles a request in its turn. Its body may have ended wrongly before."""
        end_refused_body(self, request)

        async def handle_in_turn(request: web.BaseRequest) -> web.StreamResponse:
            if request.path in PROBES:
                await self._probe_turns.next(prober(request.transport))
            else:
                await self._turns.next()
            return await request_handler(request)

        try:
            return await super()._handle_request(request, start_time, handle_in_turn)
        finally:
            untie_unmatched(request)
            untie_error(request.content.exception())

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to a request that the parser has refused, or whose handler has failed; the connection ends."""
        super().handle_error(request, status, exc, message)  # logs, and raises where an answer has begun
        untie_error(exc)
        return _answer(_to_api_error(exc))


def shaping_errors(handle: Handle) -> Handle:
    """An application's `handle` with an answer in JSON to what is refused before its middlewares: an `Expect` header
    that asks for anything but 100-continue (RFC 9110, section 10.1.1).
    """

    async def shaped(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await handle(request)
        except web.HTTPExpectationFailed:
            expected = request.headers.get(hdrs.EXPECT, "")
        return _answer(
            ApiError(
                f"Expect is {shorten(expected)}; this server knows 100-continue alone",
                status=HTTPStatus.EXPECTATION_FAILED,
                code="unknown_expectation",
            )
        )

    return shaped


def unsupported_encoding(encoding: str) -> ApiError:
    """415, for a body in an encoding that is not read."""
    return ApiError(
        f"Content-Encoding is {shorten(encoding)}; a body may be encoded with gzip or deflate, once",
        status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        code="unsupported_encoding",
    )


def undecodable(encoding: str) -> ApiError:
    """400, for a body that is not what its encoding says."""
    return ApiError(
        f"the body cannot be decoded; it must be what Content-Encoding says, which is {encoding}",
        code="invalid_encoding",
        headers={"Connection": "close"},
    )


def _answer(error: ApiError) -> web.Response:
    request_id = new_request_id()
    log.info("refused", request_id=request_id, status=error.status, code=error.code, reason=error.message)
    response = web.Response(
        body=orjson.dumps(error_object(error, request_id)),
        status=error.status,
        headers={**error.headers, REQUEST_ID_HEADER: request_id},
        content_type="application/json",
    )
    response.force_close()
    return response


def _to_api_error(error: BaseException | None) -> ApiError:
    match error:
        case ContentEncodingError():
            for name in ("br", "zstd"):
                if f"({name})" in error.message:  # aiohttp lacks the library for it
                    return unsupported_encoding(name)
            return undecodable(error.message.rpartition(" ")[2])
        case LineTooLong():
            return ApiError(
                f"a line of the request's head has more than {error.args[1]} bytes, the limit of this server",
                status=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                code="head_too_large",
            )
        case InvalidURLError():
            return ApiError("the request's target is no valid URL", code="invalid_url")
        case HttpProcessingError():
            # Behind the first line the parser shows the place in what it has read.
            reason = error.message.partition("\n")[0].rstrip(":")
            return ApiError(f"the request is not valid HTTP: {shorten(reason)}", code="invalid_http")
    return to_api_error(error if isinstance(error, Exception) else RuntimeError())
