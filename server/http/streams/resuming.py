"""GET and DELETE /v1/streams/{id}: a reconnected client resumes or stops a resumable stream."""

from aiohttp import web

from server.http.entry.guard import TENANT
from server.http.entry.served import SERVED
from server.http.streams.following import ResumableOverHttp, follow
from server.http.streams.request_store import REQUEST_STORE
from server.http.transport.json_body import json_response
from server.protocol.errors import ApiError, shorten
from server.streams.stream import LoggedStream

LAST_EVENT_ID = "Last-Event-ID"  # a browser's EventSource sends it when it comes back by itself


async def resume(request: web.Request) -> web.StreamResponse:
    """GET /v1/streams/{id}: what follows the events that the client has.

    204 tells an EventSource, which comes back after every end, that nothing follows.
    """
    stream, producer = await _find(request)
    producer.check_transport()
    after = after_of(request, stream.id)
    if stream.log.is_end(stream.log.parse(after)):
        return web.Response(status=204)
    return await follow(request, producer, stream, after)


async def stop(request: web.Request) -> web.Response:
    """DELETE /v1/streams/{id}: the stream ends with finish_reason "abort", and cannot be resumed any more."""
    stream, _ = await _find(request)
    request.app[SERVED].streams.forget(stream)
    return json_response({"id": stream.id, "object": "stream.deleted", "deleted": True})


async def _find(request: web.Request) -> tuple[LoggedStream, ResumableOverHttp]:
    """Raises ApiError: 404, the tenant has no such stream."""
    stream_id = request.match_info["id"]
    known = request.app[SERVED].streams.get(request[TENANT].owner, stream_id)
    if known is not None and isinstance(known.producer, ResumableOverHttp):
        return known, known.producer
    return await request.app[REQUEST_STORE].find(request[TENANT], stream_id)


def after_of(request: web.Request, stream_id: str) -> str | None:
    """The position of the last event that the client has, or None; raises ApiError if it is another stream's.

    The header wins: an EventSource repeats its first address, with the position that it had then.
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
