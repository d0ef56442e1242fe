"""The asynchronous store of records, files and batches, whose calls wait without blocking the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import orjson

from engine.interface.background import SHORT_SWITCHES
from engine.interface.log_interval import LogInterval
from server.admission.fair_pool import FairPool
from server.admission.keyring import NOBODY, caller
from server.storage.batch_table import BATCH_SCHEMA, BatchTable
from server.storage.database import Database, StoreError, TooLarge
from server.storage.file_table import FILE_SCHEMA, FileBytes, FileTable
from server.storage.record_table import RECORD_SCHEMA, OwnerQuotas, RecordKey, RecordTable

T = TypeVar("T")

DEFAULT_FILE_BYTES = 256 << 20


class Tables(NamedTuple):
    """What is in the database."""

    database: Database
    records: RecordTable
    files: FileTable
    batches: BatchTable


class RecordStore:
    """JSON values by key. One thread does the work; tenants take turns at it, and calls of one run in their order.

    The thread sleeps between calls, because it holds the interpreter lock while it parses large values.
    Every call raises StoreError if the store cannot be read or written; then nothing has changed.

    Args:
        path: of the file; None: in memory. A file is opened at once, so that a bad path fails at the start.
        max_records, max_bytes: beyond them the least recently used records of the owner with the most are evicted.
        max_file_bytes: of all files together, which are refused beyond it.
    """

    def __init__(
        self, path: Path | None, *, max_records: int, max_bytes: int, max_file_bytes: int = DEFAULT_FILE_BYTES
    ) -> None:
        self._path = path
        self._shares = OwnerQuotas(max_records, max_bytes)
        self._thread = FairPool(1, "store", rests=True)
        self._file_bytes = FileBytes(max_file_bytes)
        self._tables: Tables | None = None
        self._is_closed = False
        self.failure: str | None = None  # why the last call failed, or could not write, until one succeeds
        self.num_failures = 0  # calls that failed
        self._log_interval = LogInterval()
        if path is not None:
            try:
                self._thread.submit(NOBODY, self._open).result()
            except BaseException:
                self._thread.close()
                raise

    @property
    def num_records(self) -> int:
        return self._shares.total.num_records

    @property
    def num_bytes(self) -> int:
        return self._shares.total.num_bytes

    def has_room_for_files(self, owner: str, *, is_shared: bool) -> bool:
        """Whether files of this owner may have more bytes."""
        return self._file_bytes.room(owner, is_shared=is_shared) > 0

    async def run(self, work: Callable[[Tables], T]) -> T:
        """The result of `work` in the store's thread, which is done even where its waiter is cancelled."""
        future = asyncio.wrap_future(self._submit(work))
        future.add_done_callback(_retrieve_exception)
        return await asyncio.shield(future)

    async def run_read(self, work: Callable[[Tables], T]) -> T:
        """The result of `work`, which changes nothing and is skipped where its waiter is cancelled before."""

        def read(tables: Tables) -> T:
            self._check_open()  # once more: the end of the server does not wait for what was to be read
            return work(tables)

        return await asyncio.wrap_future(self._submit(read))

    async def put(self, key: RecordKey, value: Any) -> None:
        """Sets the value of `key`, which counts as used, and must not change meanwhile; raises TooLarge."""
        await self.run(lambda tables: tables.records.put(key, orjson.dumps(value)))

    async def get(self, key: RecordKey) -> Any | None:
        """The value of `key`, which counts as used; None where there is none."""
        return await self.read(key, orjson.loads)

    async def read(self, key: RecordKey, pick: Callable[[bytes], T]) -> T | None:
        """The result of `pick` on the value's bytes; the value counts as used. None where there is none.

        A parser holds the interpreter lock from beginning to end. What needs only a part of a large value, or can take
        it apart, should not parse the whole. `pick` runs in the store's thread, and what it raises is raised here.
        """

        def work(tables: Tables) -> T | None:
            content = tables.records.get(key)
            return None if content is None else pick(content)

        return await self.run_read(work)

    async def delete(self, key: RecordKey) -> bool:
        """Deletes a record; returns whether there was one."""
        return await self.run(lambda tables: tables.records.delete(key))

    async def put_made(self, key: RecordKey, make: Callable[[], bytes]) -> None:
        """As `put`, with the bytes that `make` returns in the store's thread."""
        await self.run(lambda tables: tables.records.put(key, make()))

    async def change(self, key: RecordKey, change: Callable[[bytes], bytes | None]) -> bytes | None:
        """Replaces the bytes of `key` by the result of `change`, atomically; returns the new ones.

        It runs in the store's thread, may return None to leave everything, and is not called where there is no record.
        """

        def work(tables: Tables) -> bytes | None:
            content = tables.records.get(key)
            changed = None if content is None else change(content)
            if changed is not None:
                tables.records.put(key, changed)
            return changed

        return await self.run(work)

    async def follow(self, key: RecordKey, next_id: Callable[[Any], str | None], most: int) -> list[Any]:
        """The value of `key`, and of each record that the one before it names by `next_id`, the first one first.

        Raises KeyError with the id of a missing record, TooLarge beyond `most` bytes as JSON.
        """

        def work(tables: Tables) -> list[Any]:
            values: list[Any] = []
            num_bytes, asked, seen = 0, key, set[str]()
            while asked.id not in seen:
                seen.add(asked.id)
                content = tables.records.get(asked)
                if content is None:
                    raise KeyError(asked.id)
                num_bytes += len(content)
                if num_bytes > most:
                    raise TooLarge(f"the records from {key.id} on have more than {most} bytes together")
                values.append(orjson.loads(content))
                following = next_id(values[-1])
                if following is None:
                    break
                asked = asked._replace(id=following)
            return values

        return await self.run_read(work)

    async def keys(self, kind: str) -> list[RecordKey]:
        """The keys of all records of a kind, of all owners; the least recently used comes first."""
        return await self.run_read(lambda tables: tables.records.keys(kind))

    def may_log(self) -> bool:
        """Whether a failure may be logged: once a minute, however many clients meet it."""
        return self._log_interval.is_due()

    async def check(self) -> None:
        """Raises StoreError if the file is gone, or the last call failed and records still cannot be written."""
        if self.failure is not None or self._is_closed:
            await self.run(lambda tables: tables.records.check())
        elif self._path is not None:
            await self.run(lambda tables: tables.database.check_file())

    async def close(self) -> None:
        """Closes after the calls made before; later ones, and reads that still wait, are rejected. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        await asyncio.wrap_future(self._thread.finish(self._close))

    def _submit(self, work: Callable[[Tables], T]) -> Future[T]:
        self._check_open()
        return self._thread.submit(caller(), partial(self._work, work))

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreError("the store is closed")

    def _work(self, work: Callable[[Tables], T]) -> T:
        with SHORT_SWITCHES:
            try:
                tables = self._open()
                result = work(tables)
            except TooLarge:
                raise
            except StoreError as error:
                self.failure = str(error)
                self.num_failures += 1
                raise
            self.failure = tables.database.write_error
            return result

    def _open(self) -> Tables:
        if self._tables is None:
            database = Database(self._path, (*RECORD_SCHEMA, *FILE_SCHEMA, *BATCH_SCHEMA))
            try:
                records, files = RecordTable(database, self._shares), FileTable(database, self._file_bytes)
                self._tables = Tables(database, records, files, BatchTable(database, files))
            except BaseException:
                database.close()
                raise
        return self._tables

    def _close(self) -> None:
        if self._tables is not None:
            self._tables.database.close()


def _retrieve_exception(future: asyncio.Future[Any]) -> None:
    """Keeps asyncio from complaining about an exception that is not awaited any more."""
    if not future.cancelled():
        future.exception()
