"""Routes of files: list, retrieve, content, delete."""

from __future__ import annotations

from functools import partial

from aiohttp import hdrs, web

from server.api.batches.batch_objects import list_object
from server.api.batches.file_objects import FileListQuery, file_not_found, file_object
from server.http.entry.guard import TENANT
from server.http.entry.served import SERVED
from server.http.transport.json_body import json_response, send_whole
from server.http.transport.write_timeout import WriteTimeout
from server.protocol.errors import ApiError, shorten
from server.storage.file_table import StoredFile
from server.storage.record_store import Tables

_SENT_AT_ONCE = 128 << 10  # bytes of a file


async def list_files(request: web.Request) -> web.StreamResponse:
    """GET /v1/files."""
    served, owner = request.app[SERVED], request[TENANT].owner
    query = FileListQuery.parse(request.query)
    after: int | None = None
    if query.after is not None:
        known = await _find(request, query.after)
        if known is None:
            raise ApiError(f"after is {shorten(query.after)}, which is no file", param="after", code="invalid_value")
        after = known.number
    found = await served.store.run_read(
        lambda tables: tables.files.page(
            owner, purpose=query.purpose, after=after, limit=query.limit + 1, is_ascending=query.is_ascending
        )
    )

    def respond() -> web.Response:
        listed = [file_object(file) for file in found[: query.limit]]
        return json_response(list_object(listed, has_more=len(found) > query.limit))

    return await send_whole(request, await served.workers.run(respond), served.settings)


async def retrieve(request: web.Request) -> web.Response:
    """GET /v1/files/{id}."""
    return json_response(file_object(await _found(request)))


async def delete(request: web.Request) -> web.Response:
    """DELETE /v1/files/{id}. A batch that reads it goes on."""
    owner, file_id = request[TENANT].owner, request.match_info["id"]
    was_there = await request.app[SERVED].store.run(lambda tables: tables.batches.delete_file(owner, file_id))
    if not was_there:
        raise file_not_found(file_id)
    return json_response({"id": file_id, "object": "file", "deleted": True})


async def content(request: web.Request) -> web.StreamResponse:
    """GET /v1/files/{id}/content: the bytes of the file, read from the store as the client takes them."""
    store, settings = request.app[SERVED].store, request.app[SERVED].settings
    file = await _found(request)
    response = web.StreamResponse(
        headers={hdrs.CONTENT_TYPE: "application/octet-stream", "X-Content-Type-Options": "nosniff"}
    )
    response.content_length = file.size
    transport = request.transport

    def cut() -> None:
        if transport is not None:
            transport.abort()

    timeout = WriteTimeout(
        response.write, cut, ping=b"", ping_interval=settings.ping_interval, write_timeout=settings.write_timeout
    )
    num_sent, place = 0, -1
    pieces = await store.run_read(partial(_read, file, place))
    await response.prepare(request)
    async with timeout:
        while pieces[0]:
            await timeout.write(pieces[0])
            num_sent, place = num_sent + len(pieces[0]), pieces[1]
            pieces = await store.run_read(partial(_read, file, place))
        if num_sent < file.size:  # it was deleted meanwhile
            cut()
            raise ConnectionResetError("the file was deleted while it was read")
        await timeout.finish(response.write_eof)
    return response


def _read(file: StoredFile, place: int, tables: Tables) -> tuple[bytes, int]:
    return tables.files.read_pieces(file.number, place, _SENT_AT_ONCE)


async def _find(request: web.Request, file_id: str) -> StoredFile | None:
    owner = request[TENANT].owner
    return await request.app[SERVED].store.run_read(lambda tables: tables.files.get(owner, file_id))


async def _found(request: web.Request) -> StoredFile:
    """The file that the path names; raises ApiError (404)."""
    file = await _find(request, request.match_info["id"])
    if file is None:
        raise file_not_found(request.match_info["id"])
    return file
