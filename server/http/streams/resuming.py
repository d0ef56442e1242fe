"""The routes of resumable streams: a client that comes back reads on, or stops the stream."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from aiohttp import web

from server.api.route import BodyRoute
from server.http.entry.guard import TENANT
from server.http.entry.served import SERVED
from server.http.streams.fronted import read_front
from server.http.streams.kept_requests import kept_requests
from server.http.streams.sse import EventStream
from server.http.transport.json_body import json_response
from server.protocol.errors import ApiError, shorten
from server.streams.held_answer import HeldAnswer

LAST_EVENT_ID = "Last-Event-ID"  # a browser's EventSource sends it when it comes back by itself


@runtime_checkable
class Resumable(Protocol):
    """Makes an answer, and knows by itself how its stream goes on."""

    async def __call__(self, answer: HeldAnswer) -> None:
        """As `Work`."""

    async def resume(self, request: web.Request, answer: HeldAnswer, after: str | None) -> web.StreamResponse:
        """Streams what follows the place `after`, or all without one; 204 where nothing follows."""


async def resume(request: web.Request) -> web.StreamResponse:
    """GET /v1/streams/{id}: what follows the events that the client has.

    204 tells an EventSource, which comes back after every end, that nothing follows.
    """
    served, stream_id = request.app[SERVED], request.match_info["id"]
    known = served.held.get(request[TENANT].owner, stream_id)
    if known is not None and isinstance(known.work, Resumable):
        return await known.work.resume(request, known, after_of(request, stream_id))
    answer, held = await kept_requests(request).find(request[TENANT], stream_id)
    if not isinstance(held.route, BodyRoute):
        raise ApiError(
            f"the stream was begun on the WebSocket {held.route.path}; resume it there",
            status=409,
            param="id",
            code="wrong_transport",
        )
    lanes, after = held.open(answer.log), after_of(request, stream_id)
    had = lanes.beginning if after is None else lanes.parse(after)
    if lanes.is_end(had):
        return web.Response(status=204)
    with answer.reading():
        is_fronted = read_front(request) is not None
        async with EventStream(request, held.route, served, stream_id, is_fronted=is_fronted) as stream:
            if not held.model.is_open:
                await stream.open()  # an EventSource gives up at an error, and waits for a stream that pings
            async with held.tell_load(stream.open):
                await answer.begun()
            await stream.open()
            await stream.follow(stream_id, lanes, had)
        return stream.response


async def stop(request: web.Request) -> web.Response:
    """DELETE /v1/streams/{id}: the stream ends with finish_reason "abort", and nobody can come back to it."""
    served, stream_id = request.app[SERVED], request.match_info["id"]
    answer = served.held.get(request[TENANT].owner, stream_id)
    if answer is None or not isinstance(answer.work, Resumable):
        answer, _ = await kept_requests(request).find(request[TENANT], stream_id)
    served.held.forget(answer)
    return json_response({"id": stream_id, "object": "stream.deleted", "deleted": True})


def after_of(request: web.Request, stream_id: str) -> str | None:
    """The place of the last event that the client has; None: it has none.

    The header wins: an EventSource repeats its first address, with the place that it had then.

    Raises:
        ApiError: it belongs to another stream.
    """
    last = request.headers.get(LAST_EVENT_ID)
    if not last:
        return request.query.get("after")
    of_stream, colon, place = last.rpartition(":")
    if colon and of_stream != stream_id:
        raise ApiError(
            f"Last-Event-ID is {shorten(last)}; it belongs to another stream", param=LAST_EVENT_ID, code="invalid_value"
        )
    return place
