"""POST /v1/files: the body of an upload goes into the store piece by piece, as it arrives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress

from aiohttp import hdrs, web

from server.admission.keyring import NOBODY, caller
from server.api.batches.file_objects import check_purpose, checked_name, file_object, lifetime_of
from server.http.entry.guard import TENANT
from server.http.entry.served import SERVED
from server.http.transport.content_encoding import PLAIN
from server.http.transport.form_data import FILE_FIELD, FormData
from server.http.transport.http_errors import unsupported_encoding
from server.http.transport.json_body import json_response
from server.protocol.errors import ApiError, shorten
from server.startup.settings import ServerSettings
from server.storage.batch_table import new_file_id
from server.storage.database import StoreError
from server.storage.file_table import FilesFull
from server.storage.record_store import RecordStore

PIECE_BYTES = 64 << 10
FORM_BYTES = 64 << 10  # of an upload, besides the file
LEAST_BYTES_PER_S = 16 << 10  # of an upload that takes longer than a body may take


class Upload:
    """A file that arrives; used as `async with`, which drops it unless it was finished."""

    def __init__(self, store: RecordStore, owner: str, max_bytes: int) -> None:
        self._store = store
        self._owner = owner
        self._max_bytes = max_bytes
        self._is_shared = caller() != NOBODY
        self._id = new_file_id()
        self._created = int(time.time())
        self._number: int | None = None
        self._num_bytes = 0
        self._rest = bytearray()  # what is no whole piece yet

    async def __aenter__(self) -> Upload:
        creating = asyncio.ensure_future(self._store.run(
            lambda tables: tables.files.create(self._owner, self._id, self._created, is_shared=self._is_shared)
        ))  # fmt: skip
        try:
            self._number = await asyncio.shield(creating)
        except asyncio.CancelledError:
            with suppress(FilesFull, StoreError):  # nobody is there to be told
                self._number = await creating
                await self.__aexit__()
            raise
        except FilesFull as error:
            raise self._full(error) from error
        return self

    async def __aexit__(self, *_error: object) -> None:
        number = self._number
        if number is not None:
            with suppress(StoreError):  # then the next start drops it
                await self._store.run(lambda tables: tables.files.discard(number))

    async def write(self, data: bytes) -> None:
        """Adds bytes; raises ApiError where there are too many, StoreError."""
        self._rest += data
        if self._num_bytes + len(self._rest) > self._max_bytes:
            raise file_too_large(self._max_bytes)
        while len(self._rest) >= PIECE_BYTES:
            await self._store_piece(PIECE_BYTES)

    async def finish(self, name: str, purpose: str, lifetime: int) -> dict[str, object]:
        """Ends the upload; returns the object of the file."""
        if self._rest:
            await self._store_piece(len(self._rest))
        number, expires = self._number, self._created + lifetime
        assert number is not None
        file = await self._store.run(lambda tables: tables.files.finish(number, name, purpose, expires))
        self._number = None
        return file_object(file)

    async def _store_piece(self, size: int) -> None:
        number, start, piece = self._number, self._num_bytes, bytes(self._rest[:size])
        assert number is not None
        try:
            await self._store.run(
                lambda tables: tables.files.append(number, self._owner, start, piece, is_shared=self._is_shared)
            )
        except FilesFull as error:
            raise self._full(error) from error
        self._num_bytes += size
        del self._rest[:size]

    def _full(self, error: FilesFull) -> ApiError:
        own = f", {error.num_bytes} of them with this key, which may have half of what others leave"
        return ApiError(
            f"files hold {error.total} bytes{own if self._is_shared else ''}; the limit of this server is "
            f"{error.limit}. Delete files, or wait until they expire",
            status=413, param=FILE_FIELD, code="files_full",
        )  # fmt: skip


async def upload(request: web.Request) -> web.Response:
    """Stores a file of a form, with its purpose."""
    settings, owner = request.app[SERVED].settings, request[TENANT].owner
    encoding = request.headers.get(hdrs.CONTENT_ENCODING, "").strip().lower()
    if encoding not in PLAIN:
        raise unsupported_encoding(encoding)
    form = FormData.of(request.headers.get(hdrs.CONTENT_TYPE, ""))
    if request.content_length is not None and request.content_length > settings.max_file_bytes + FORM_BYTES:
        raise file_too_large(settings.max_file_bytes)
    async with Upload(request.app[SERVED].store, owner, settings.max_file_bytes) as arriving:
        async for chunk in _chunks(request, settings):
            content = form.feed(chunk)
            if form.file_name is not None:
                checked_name(form.file_name)
            if "purpose" in form.fields:
                check_purpose(form.fields["purpose"])
            await arriving.write(content)
        form.finish()
        purpose, name = form.fields.get("purpose"), form.file_name
        check_purpose(purpose)
        lifetime = lifetime_of(form.fields)
        assert purpose is not None
        assert name is not None
        return json_response(await arriving.finish(name, purpose, lifetime))


async def _chunks(request: web.Request, settings: ServerSettings) -> AsyncIterator[bytes]:
    """The body as it arrives; raises ApiError where it is too large or too slow, or does not end as its head says."""
    clock = asyncio.get_running_loop().time
    began, num_bytes = clock(), 0
    try:
        while True:
            due = began + settings.body_timeout + num_bytes / LEAST_BYTES_PER_S
            async with asyncio.timeout_at(min(due, clock() + settings.body_timeout)):
                chunk = await request.content.readany()
            if not chunk:
                return
            num_bytes += len(chunk)
            if num_bytes > settings.max_file_bytes + FORM_BYTES:
                raise file_too_large(settings.max_file_bytes)
            yield chunk
    except TimeoutError as error:
        raise ApiError(
            f"the body did not arrive within {settings.body_timeout:g} s and at {LEAST_BYTES_PER_S} bytes a second, "
            "the limits of this server",
            status=408, code="body_timeout", headers={"Connection": "close"},
        ) from error  # fmt: skip
    except web.RequestPayloadError as error:
        raise ApiError(
            "the body does not end as its head says, or its chunks are not valid HTTP",
            code="invalid_http", headers={"Connection": "close"},
        ) from error  # fmt: skip


def file_too_large(most: int) -> ApiError:
    """413, for a file beyond `max_file_bytes`."""
    return ApiError(
        f"the file is larger than {shorten(most)} bytes, the limit of this server",
        status=413, param=FILE_FIELD, code="file_too_large",
    )  # fmt: skip
