"""Routes of batches: create, list, retrieve, cancel."""

from __future__ import annotations

from contextlib import ExitStack

from aiohttp import web

from server.api.batches.batch_objects import BatchStatus, batch_not_found, batch_object, list_object
from server.api.batches.batch_requests import NewBatch, window_seconds
from server.api.batches.file_objects import BATCH_PURPOSE, DEFAULT_LIFETIME_S, file_not_found
from server.api.conversations.query_params import DEFAULT_LIMIT, MAX_LIMIT, parse_number
from server.http.batches.batch_runner import BATCH_RUNNER
from server.http.entry.guard import TENANT
from server.http.entry.served import SERVED, read_request
from server.http.transport.json_body import json_response, send_whole
from server.protocol.errors import ApiError, invalid_value, shorten
from server.storage.batch_table import StoredBatch, TooManyOpen, new_batch_id

MAX_OPEN = 64  # batches of one key that have not ended


async def create(request: web.Request) -> web.Response:
    """POST /v1/batches."""
    served, owner, runner = request.app[SERVED], request[TENANT].owner, request.app[BATCH_RUNNER]
    with ExitStack() as preparing:
        body = await read_request(request, NewBatch.parse, preparing)
    file = await served.store.run_read(lambda tables: tables.files.get(owner, body.input_file_id))
    if file is None:
        raise file_not_found(body.input_file_id, "input_file_id")
    if file.purpose != BATCH_PURPOSE:
        raise invalid_value(
            f"the file {file.id} has the purpose {file.purpose}; it must be {BATCH_PURPOSE}", "input_file_id"
        )
    created = int(runner.clock())
    expires_after = body.output_expires_after
    fields = {
        "endpoint": body.endpoint,
        "input_file_id": file.id,
        "completion_window": body.completion_window,
        "metadata": body.metadata,
        "output_lifetime": DEFAULT_LIFETIME_S if expires_after is None else expires_after.seconds,
    }
    expires = created + window_seconds(body.completion_window)
    try:
        batch = await served.store.run(
            lambda tables: tables.batches.create(owner, new_batch_id(), created, expires, file.number, fields, MAX_OPEN)
        )
    except TooManyOpen:
        raise ApiError(
            f"{MAX_OPEN} batches of this key have not ended, the limit; wait for them or cancel some",
            status=429, error_type="rate_limit_error", code="too_many_batches",
        ) from None  # fmt: skip
    finally:
        runner.notice()  # also where the client has left
    return json_response(batch_object(batch))


async def list_batches(request: web.Request) -> web.StreamResponse:
    """GET /v1/batches: the newest first."""
    served, owner = request.app[SERVED], request[TENANT].owner
    limit = parse_number(request.query, "limit", 1, MAX_LIMIT, DEFAULT_LIMIT)
    after, number = request.query.get("after"), None
    if after is not None:
        known = await served.store.run_read(lambda tables: tables.batches.get(owner, after))
        if known is None:
            raise ApiError(f"after is {shorten(after)}, which is no batch", param="after", code="invalid_value")
        number = known.number
    found = await served.store.run_read(lambda tables: tables.batches.page(owner, after=number, limit=limit + 1))

    def respond() -> web.Response:
        listed = [batch_object(batch) for batch in found[:limit]]
        return json_response(list_object(listed, has_more=len(found) > limit))

    return await send_whole(request, await served.workers.run(respond), served.settings)


async def retrieve(request: web.Request) -> web.Response:
    """GET /v1/batches/{id}."""
    return json_response(batch_object(await _found(request)))


async def cancel(request: web.Request) -> web.Response:
    """POST /v1/batches/{id}/cancel: its requests end; one that has ended stays as it is."""
    batch, runner = await _found(request), request.app[BATCH_RUNNER]
    fields = {"cancelling_at": int(runner.clock())}
    changed = await request.app[SERVED].store.run(
        lambda tables: tables.batches.change(
            batch.number, BatchStatus.CANCELLING, fields, only_if=(BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)
        )
    )
    if changed.status not in (BatchStatus.CANCELLING, BatchStatus.CANCELLED):
        raise ApiError(
            f"the batch {batch.id} has ended with the status {changed.status}; it cannot be cancelled",
            status=409, param="batch_id", code="batch_ended",
        )  # fmt: skip
    runner.notice()
    return json_response(batch_object(changed))


async def _found(request: web.Request) -> StoredBatch:
    """The batch that the path names; raises ApiError (404)."""
    owner, batch_id = request[TENANT].owner, request.match_info["id"]
    batch = await request.app[SERVED].store.run_read(lambda tables: tables.batches.get(owner, batch_id))
    if batch is None:
        raise batch_not_found(batch_id)
    return batch
