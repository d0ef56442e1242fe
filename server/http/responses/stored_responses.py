"""Routes of stored responses: fetch, list the input, delete, cancel, and follow one that is still running."""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TypeVar

import orjson
from aiohttp import web

from server.api.conversations.query_params import ListQuery, parse_number, parse_switch
from server.api.conversations.response_records import Record, response_key, response_not_found
from server.api.responses.items import Item
from server.api.responses.response_object import fail_response
from server.http.entry.guard import TENANT
from server.http.entry.served import SERVED
from server.http.responses import background
from server.http.transport.json_body import json_response, send_whole
from server.protocol.errors import ApiError, shorten

T = TypeVar("T")

MAX_SEQUENCE_NUMBER = 2**53
_RUNNING = ("queued", "in_progress")


async def fetch(request: web.Request) -> web.StreamResponse:
    """GET /v1/responses/{id}: the response, or with `stream=true` the events behind `starting_after`."""
    response_id = request.match_info["id"]
    is_stream = parse_switch(request.query, "stream")
    after = parse_number(request.query, "starting_after", 0, MAX_SEQUENCE_NUMBER, -1)
    if after >= 0 and not is_stream:
        raise ApiError(
            "starting_after is given and stream is not true; it is only allowed when streaming",
            param="starting_after",
            code="invalid_value",
        )
    if is_stream:
        key = response_key(request[TENANT].owner, response_id)
        if await request.app[SERVED].store.read(key, lambda _: True) is None:  # it need not be taken apart
            raise response_not_found(response_id)
        return await background.follow(request, response_id, after + 1)
    return await _send(request, await _read(request, response_id, _tell))


async def delete(request: web.Request) -> web.Response:
    """DELETE /v1/responses/{id}: it is forgotten; one that is still being made is stopped."""
    served, tenant, response_id = request.app[SERVED], request[TENANT], request.match_info["id"]
    is_deleted = await served.store.delete(response_key(tenant.owner, response_id))
    background.forget(served, tenant, response_id, was_stored=is_deleted)
    if not is_deleted:
        raise response_not_found(response_id)
    return json_response({"id": response_id, "object": "response.deleted", "deleted": True})


async def cancel(request: web.Request) -> web.StreamResponse:
    """POST /v1/responses/{id}/cancel: one that is being made ends early; one that has ended stays as it is."""
    served, tenant, response_id = request.app[SERVED], request[TENANT], request.match_info["id"]
    was_running = await background.stop(served, tenant, response_id)

    def tell(record: Record) -> web.Response:
        if not was_running and not record["response"]["background"]:
            raise ApiError(
                f"the response {shorten(response_id)} was not made in the background; only such responses are "
                "cancelled",
                param="response_id",
                code="not_cancellable",
            )
        return _tell(record)

    return await _send(request, await _read(request, response_id, tell))


async def list_input(request: web.Request) -> web.StreamResponse:
    """GET /v1/responses/{id}/input_items: the items of the request, without those of earlier turns."""
    query = ListQuery.parse(request.query)

    def tell(record: Record) -> web.Response:
        items: Sequence[Item] = record["input"]
        return json_response(query.page(items, itemgetter("id")))

    return await _send(request, await _read(request, request.match_info["id"], tell))


async def _read(request: web.Request, response_id: str, pick: Callable[[Record], T]) -> T:
    """Loads the record and returns `pick(record)`, in the store's thread; raises ApiError (404)."""
    served, tenant = request.app[SERVED], request[TENANT]
    is_running = background.is_running(served, tenant, response_id)  # if it ends before it is read, its end is stored

    def work(content: bytes) -> T:
        record: Record = orjson.loads(content)
        response = record["response"]
        if response["status"] in _RUNNING and not is_running:
            # A server that ended before it had made the response has left it like this.
            fail_response(response, response["output"], "the server ended before the response was made", "server_error")
        return pick(record)

    found = await served.store.read(response_key(tenant.owner, response_id), work)
    if found is None:
        raise response_not_found(response_id)
    return found


def _tell(record: Record) -> web.Response:
    return json_response(record["response"])


async def _send(request: web.Request, response: web.Response) -> web.Response:
    return await send_whole(request, response, request.app[SERVED].settings)
