"""JSON error responses to requests that are refused before they reach the application.

aiohttp answers such requests by itself, in plain text. Which route they were for is not known then, so that the shape
is always OpenAI's.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import orjson
from aiohttp import hdrs, web
from aiohttp.http_exceptions import (
    HttpProcessingError,
    InvalidURLError,
    LineTooLong,
)

from server.admission.keyring import KeyRing, presented_key
from server.admission.loop_throttle import LoopThrottle
from server.admission.probes import ANSWERED_ALWAYS, PROBES
from server.api.openai.openai_objects import error_object
from server.http.accepting.connection_places import Place
from server.http.accepting.trusted_proxies import TrustedProxies, prober
from server.http.transport.aiohttp_internals import (
    bare_transport,
    end_refused_body,
    request_in_progress,
    untie_connection,
    untie_error,
    untie_transport,
    untie_unmatched,
)
from server.protocol.errors import RETRY_AFTER_S, SERVER_ERROR, ApiError, shorten, to_api_error
from server.startup.logs import REQUEST_ID_HEADER, log

MAX_DISCARDED = 64 << 10  # bytes of a body that nobody wants, which are read so that its connection can be kept
DISCARD_S = 1.0  # for these bytes to arrive
CLOSE_S = 1.0  # for a client to read its answer before the connection ends with what was not read

STRANGERS = "without a key"  # all clients together who show no valid one where they need it

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Connection(web.RequestHandler):
    """One client's connection. It answers invalid HTTP with a JSON error, too."""

    __slots__ = ("_bare_transport", "_keys", "_place", "_probe_turns", "_proxies", "_turns")

    def __init__(
        self,
        manager: web.Server,
        *,
        place: Place,
        keys: KeyRing | None,
        turns: LoopThrottle,
        probe_turns: LoopThrottle,
        proxies: TrustedProxies | None = None,
        **options: Any,
    ) -> None:
        """Args:
        place: among the server's connections.
        keys: of the clients; None where nobody needs one.
        turns: of the loop, which all requests wait for, also those that the parser has refused. The names of keys and
            the addresses of clients without a key take turns, or all of these together where clients need a key.
        probe_turns: for which probes wait in their place. Their answers are known already, and an orchestrator that
            waits long for one restarts the process. The addresses they come from take turns, because a probe wants no
            key: however many one sends, another's waits for one of them at most.
        proxies: if the peer is a trusted one, all of them, so that the client behind it is known.
        """
        super().__init__(manager, **options)
        self._place = place
        self._keys = keys
        self._proxies = proxies
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
        """Gives its place back, and drops the references that would keep this connection until a garbage collection."""
        self._place.release()
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
        if self._place.is_released:
            # The connection was ended to make room, or lost, between the arrival of the head and this turn of the loop.
            # The client cannot know whether the request was handled, and sends it again.
            return web.Response(), True
        end_refused_body(self, request)
        content, keys = request.content, self._keys
        tenant = None if keys is None else keys.find(presented_key(request.headers))
        wants_key = keys is not None and not keys.is_open and tenant is None
        self._place.begin(lambda: wants_key or not content.is_eof())
        if tenant is not None:
            self._place.authenticate()
        refusal = self._refusal_of(request)
        owner = f"key {tenant.name}" if tenant is not None else STRANGERS if wants_key else self._place.owner

        async def handle_in_turn(request: web.BaseRequest) -> web.StreamResponse:
            if request.path in PROBES:
                await self._probe_turns.next(prober(request.transport))
            else:
                await self._turns.next(owner)
            response = await request_handler(request) if refusal is None else _answer(refusal)
            if not response.prepared and (self._place.is_extra or not _is_short(request)):
                response.force_close()
            return response

        try:
            response, is_lost = await super()._handle_request(request, start_time, handle_in_turn)
            if not is_lost and not request.content.is_eof():
                await self._end_unread(request, is_kept=bool(response.keep_alive))
            return response, is_lost
        finally:
            self._place.end()
            untie_unmatched(request)
            untie_error(request.content.exception())

    def _refusal_of(self, request: web.BaseRequest) -> ApiError | None:
        """Why a request is not handled: there is no place for its connection, or its client has its share of them."""
        place = self._place
        if self._proxies is not None:
            headers = request.headers
            client = self._proxies.client_of(headers.getall("X-Forwarded-For", ()), headers.getall(hdrs.FORWARDED, ()))
            if client is not None and not place.assign(client):
                return too_many_connections(place.limit)
        if place.is_extra and request.path not in ANSWERED_ALWAYS and not place.promote():
            return too_many_connections(place.limit)
        return None

    async def _end_unread(self, request: web.BaseRequest, *, is_kept: bool) -> None:
        """Ends an answered request whose body was not read: reads a short body, and closes the connection over a long
        one. The close comes late, because it would overtake the answer.
        """
        if is_kept and _is_short(request):
            with suppress(TimeoutError, web.RequestPayloadError):
                async with asyncio.timeout(DISCARD_S):
                    while await request.content.readany():
                        pass
        if not request.content.is_eof() and self._close_sending():
            await asyncio.sleep(CLOSE_S)
            if self.transport is not None:
                self.transport.abort()

    def _close_sending(self) -> bool:
        """Reads no more and closes the server's half, where there still is a connection.

        A function of its own, because a cancelled task would keep a transport that is in one of its variables.
        """
        transport = self.transport
        if transport is None or transport.is_closing():
            return False
        transport.pause_reading()
        if transport.can_write_eof():
            with suppress(OSError):  # the client has reset the connection
                transport.write_eof()
        return True

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


def too_many_connections(limit: int) -> ApiError:
    """503, for a request on a connection that has no place."""
    return ApiError(
        f"{limit} connections are open, the limit of this server, or too many of them by this client; try again later",
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        error_type=SERVER_ERROR,
        code="too_many_connections",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


def _is_short(request: web.BaseRequest) -> bool:
    """Whether all of the body has arrived, or little of it is missing."""
    length = request.content_length
    return request.content.is_eof() or (length is not None and length <= MAX_DISCARDED)


def _answer(error: ApiError) -> web.Response:
    request_id = uuid.uuid4().hex
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
