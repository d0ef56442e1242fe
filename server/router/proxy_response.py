"""How a request's headers go to a replica, and how an answer comes back: bytes are passed on as they come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
from aiohttp import hdrs, web

from server.http.entry.access_log import REQUEST_ID
from server.http.streams.router_headers import FRONT_HEADERS
from server.http.transport.write_timeout import WriteTimeout
from server.router.replica import ReplicaLost
from server.startup.logs import REQUEST_ID_HEADER
from server.startup.settings import ServerSettings

REPLICA_HEADER = "X-Eagre-Replica"
EVENT_STREAM = "text/event-stream"
BETWEEN_EVENTS = b"\n\n"
MAX_TOLD = 1 << 26  # bytes of an answer that is read whole, however long it says that it is
MAX_EVENT = 1 << 28  # bytes; only the log probabilities of a very long prompt come near
MAX_WHOLE = 1 << 16  # bytes of an answer that is taken whole, so that a replica that dies meanwhile is not noticed

# They speak of one connection (RFC 9110, section 7.6.1), or of a body that is decoded here and framed anew.
_OF_A_CONNECTION = frozenset(
    {
        "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "trailer",
        "transfer-encoding", "upgrade", "content-length",
    }
)  # fmt: skip
# Host and origin are checked by the front, for a name that is its own.
_NOT_ASKED = _OF_A_CONNECTION | {"host", "origin", "expect", "content-encoding", "accept-encoding"}
_NOT_ASKED_OF_SOCKETS = frozenset(
    {"sec-websocket-key", "sec-websocket-version", "sec-websocket-extensions", "sec-websocket-protocol"}
)
_NOT_TOLD = _OF_A_CONNECTION | {"date", "server"}


def request_headers(request: web.Request) -> dict[str, str]:
    """The headers of `request` for a replica, with the request's id. Nothing in them says that a front asks."""
    found = {
        name: value
        for name, value in request.headers.items()
        if (lower := name.lower()) not in _NOT_ASKED
        and lower not in _NOT_ASKED_OF_SOCKETS
        and lower not in FRONT_HEADERS
        and not lower.startswith("sec-fetch-")
    }
    found[REQUEST_ID_HEADER] = request[REQUEST_ID]
    return found


def answer_headers(answer: aiohttp.ClientResponse) -> list[tuple[str, str]]:
    """The headers of a replica's answer for the client."""
    return [(name, value) for name, value in answer.headers.items() if name.lower() not in _NOT_TOLD]


def is_event_stream(answer: aiohttp.ClientResponse) -> bool:
    return answer.headers.get(hdrs.CONTENT_TYPE, "").startswith(EVENT_STREAM)


class ProxyResponse:
    """An answer on its way to the client; used as `async with`.

    A client that takes nothing for the write timeout is cut off. While it is slow, nothing is read from the replica, so
    no more than some buffers' worth is held here.
    """

    def __init__(self, request: web.Request, settings: ServerSettings, *, ping: bytes = b"") -> None:
        """Args:
        ping: what the client gets where nothing else comes for the ping interval; empty for nothing.
        """
        self._request = request
        self._settings = settings
        self._ping = ping
        self._watch: WriteTimeout | None = None
        self.response: web.StreamResponse | None = None
        self.last = b""  # what was passed on last

    async def __aenter__(self) -> ProxyResponse:
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            await watch.__aexit__(*exc_info)

    @property
    def is_open(self) -> bool:
        return self._watch is not None

    async def open(self, answer: aiohttp.ClientResponse, replica: str, extra: Mapping[str, str] | None = None) -> None:
        """Sends the status and the headers of `answer`."""
        response = self.response = web.StreamResponse(status=answer.status, reason=answer.reason)
        response.headers.extend(answer_headers(answer))
        response.headers[REPLICA_HEADER] = replica
        response.headers.update(extra or {})
        if answer.content_length is not None and not is_event_stream(answer):
            response.content_length = answer.content_length
        await response.prepare(self._request)
        watch = WriteTimeout(
            response.write, self.cut, ping=self._ping, ping_interval=self._settings.ping_interval,
            write_timeout=self._settings.write_timeout,
        )  # fmt: skip
        self._watch = await watch.__aenter__()

    async def write(self, data: bytes) -> None:
        """Passes bytes on; waits while the client is slow."""
        assert self._watch is not None
        self.last = data
        await self._watch.write(data)

    async def end(self) -> None:
        """Nothing more will be written."""
        assert self._watch is not None
        assert self.response is not None
        await self._watch.finish(self.response.write_eof)

    def cut(self) -> None:
        """Breaks the connection off, so that the client cannot take what it has for all of the answer."""
        if self._request.transport is not None:
            self._request.transport.abort()


async def read_piece(answer: aiohttp.ClientResponse, replica: str) -> bytes:
    """What has come since the last call, or the next that comes; empty at the end of the answer.

    Raises:
        ReplicaLost: the connection ended before the answer did.
    """
    try:
        return await answer.content.readany()
    except (aiohttp.ClientError, OSError) as error:
        raise ReplicaLost(f"{replica} broke off in its answer", was_asked=True) from error


async def read_whole(answer: aiohttp.ClientResponse, replica: str) -> bytes:
    """All of a body.

    Raises:
        ReplicaLost: the connection ended before the body did, or the body is longer than `MAX_TOLD`.
    """
    body = bytearray()
    while piece := await read_piece(answer, replica):
        body += piece
        if len(body) > MAX_TOLD:
            raise ReplicaLost(f"{replica} sent more than {MAX_TOLD} bytes", was_asked=True)
    return bytes(body)


class EventReader:
    """Reads whole events of an answer, so that an error event can follow wherever the replica breaks off."""

    def __init__(self, answer: aiohttp.ClientResponse, replica: str) -> None:
        self._answer = answer
        self._replica = replica
        self._rest = bytearray()  # of an event that has not come whole

    async def read(self) -> bytes:
        """The events that have come since the last call, or the next ones. At the end of the answer what is left of
        an unfinished event, and then nothing.

        Raises:
            ReplicaLost: the connection ended before the answer did, or an event is longer than `MAX_EVENT`.
        """
        rest = self._rest
        while piece := await read_piece(self._answer, self._replica):
            if not rest and piece.endswith(BETWEEN_EVENTS):
                return piece
            from_here = max(len(rest) - 1, 0)  # what stands before was looked at when it came
            rest += piece
            end = rest.rfind(BETWEEN_EVENTS, from_here) + len(BETWEEN_EVENTS)
            if end >= len(BETWEEN_EVENTS):
                events = bytes(rest[:end])
                del rest[:end]
                return events
            if len(rest) > MAX_EVENT:
                raise ReplicaLost(f"{self._replica} sent an event of more than {MAX_EVENT} bytes", was_asked=True)
        left = bytes(rest)
        rest.clear()
        return left
