"""The headers of requests to replicas, and the responses that pass a replica's answer on to the client."""

import re
from typing import Any, Self

import aiohttp
from aiohttp import web

from server.api.framing import SERVER_SENT_EVENTS, Framing
from server.api.openai.chat import CHAT_COMPLETIONS
from server.api.responses import events
from server.api.route import BodyRoute
from server.http.entry.access_log import REQUEST_ID
from server.http.entry.guard import GUARD
from server.http.responses.routes import RESPONSES
from server.http.streams.router_headers import FRONT_HEADERS, KEYED_HEADER
from server.http.table import ROUTES
from server.http.transport.write_timeout import WriteTimeout
from server.protocol.errors import ApiError
from server.router.replica import ReplicaLost, read_piece
from server.startup.logs import REQUEST_ID_HEADER
from server.startup.settings import ServerSettings

REPLICA_HEADER = "X-Eagre-Replica"
_ENDS = {"text/event-stream": b"\n\n", "application/x-ndjson": b"\n"}  # of an event, by the type of the stream
MAX_EVENT = 1 << 28  # bytes; only the log probabilities of a very long prompt come near
_BODY_ROUTES = {route.path: route for route in ROUTES if isinstance(route, BodyRoute)}
_SEQUENCE_NUMBER = re.compile(rb'"sequence_number":(\d+)')

# Hop-by-hop headers (RFC 9110, section 7.6.1), and the length of a body that is decoded here and framed anew.
_HOP_BY_HOP = frozenset(
    {
        "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "trailer",
        "transfer-encoding", "upgrade", "content-length",
    }
)  # fmt: skip
# The router checks host and origin itself. A router's own headers mean nothing from a client.
_NOT_SENT = (
    _HOP_BY_HOP
    | {"host", "origin", "expect", "content-encoding", "accept-encoding"}
    | {"sec-websocket-key", "sec-websocket-version", "sec-websocket-extensions", "sec-websocket-protocol"}
    | FRONT_HEADERS
)
_NOT_RETURNED = _HOP_BY_HOP | {"date", "server"}


def request_headers(request: web.Request) -> dict[str, str]:
    """The headers of `request` for a replica, with the id of the request, and whether this router wants keys."""
    found = {
        name: value
        for name, value in request.headers.items()
        if (lower := name.lower()) not in _NOT_SENT and not lower.startswith("sec-fetch-")
    }
    found[REQUEST_ID_HEADER] = request[REQUEST_ID]
    keys = request.app[GUARD].keys
    if keys is not None and not keys.is_open:
        found[KEYED_HEADER] = "1"
    return found


def answer_headers(answer: aiohttp.ClientResponse) -> list[tuple[str, str]]:
    """The headers of a replica's answer for the client."""
    return [(name, value) for name, value in answer.headers.items() if name.lower() not in _NOT_RETURNED]


def is_event_stream(answer: aiohttp.ClientResponse) -> bool:
    return answer.content_type in _ENDS


def framing_of(path: str) -> Framing:
    """The framing of the streams of a route."""
    route = _BODY_ROUTES.get(path)
    return SERVER_SENT_EVENTS if route is None else route.framing


class ProxyResponse:
    """The response to a client that streams the answer of one or more replicas; used as `async with`.

    A client that takes nothing for the write timeout is cut off. While it is slow, nothing is read from the replica.
    """

    def __init__(self, request: web.Request, settings: ServerSettings, *, ping: bytes = b"") -> None:
        """`ping` is written where nothing else was for the ping interval, unless it is empty."""
        self._request = request
        self._settings = settings
        self._ping = ping
        self._response: web.StreamResponse | None = None
        self._watch: WriteTimeout | None = None
        self._last = b""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            await watch.__aexit__(*exc_info)

    @property
    def is_open(self) -> bool:
        """Whether the client has the status and the headers."""
        return self._watch is not None

    async def open(self, answer: aiohttp.ClientResponse, replica: str) -> None:
        """Sends the status and the headers of `answer`."""
        response = self._response = web.StreamResponse(status=answer.status, reason=answer.reason)
        response.headers.extend(answer_headers(answer))
        response.headers[REPLICA_HEADER] = replica
        if answer.content_length is not None and not is_event_stream(answer):
            response.content_length = answer.content_length
        await response.prepare(self._request)
        watch = WriteTimeout(
            response.write, self.cut, ping=self._ping, ping_interval=self._settings.ping_interval,
            write_timeout=self._settings.write_timeout,
        )  # fmt: skip
        self._watch = await watch.__aenter__()

    async def write(self, data: bytes) -> None:
        """Writes a piece of the body; waits while the client is slow."""
        assert self._watch is not None
        self._last = data
        await self._watch.write(data)

    async def write_error(self, path: str, error: ApiError) -> None:
        """Writes an error as the last event of a stream, in the form of the route `path` that began it."""
        if path.startswith(RESPONSES):
            numbers = _SEQUENCE_NUMBER.findall(self._last)
            await self.write(events.error_event(error, int(numbers[-1]) + 1 if numbers else 0))
        else:
            route = _BODY_ROUTES.get(path, CHAT_COMPLETIONS)
            await self.write(route.encode_error_event(error, self._request[REQUEST_ID]))

    async def end(self) -> web.StreamResponse:
        assert self._watch is not None
        assert self._response is not None
        await self._watch.finish(self._response.write_eof)
        return self._response

    def cut(self) -> None:
        """Aborts the connection, so that the client cannot take what it has for the whole answer."""
        if self._request.transport is not None:
            self._request.transport.abort()


class EventReader:
    """Reads an event stream in whole events, so that an error event can follow wherever the replica breaks off."""

    def __init__(self, answer: aiohttp.ClientResponse, replica: str) -> None:
        self._answer = answer
        self._replica = replica
        self._rest = bytearray()  # the beginning of an event
        self.event_end = _ENDS[answer.content_type]

    async def read(self) -> bytes:
        """The next events; at the end what is left of an unfinished one, and then nothing. Raises ReplicaLost."""
        rest, event_end = self._rest, self.event_end
        while piece := await read_piece(self._answer, self._replica):
            if not rest and piece.endswith(event_end):
                return piece
            searched = max(len(rest) - 1, 0)
            rest += piece
            end = rest.rfind(event_end, searched) + len(event_end)
            if end >= len(event_end):
                whole = bytes(rest[:end])
                del rest[:end]
                return whole
            if len(rest) > MAX_EVENT:
                raise ReplicaLost(f"{self._replica} sent an event of more than {MAX_EVENT} bytes", was_sent=True)
        left = bytes(rest)
        rest.clear()
        return left
