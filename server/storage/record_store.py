"""The store as the server's routes know it: records are JSON values, and every call waits without blocking the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import orjson

from engine.interface.background import SHORT_SWITCHES
from server.admission.fair_pool import FairPool
from server.admission.keyring import NOBODY, caller
from server.storage.record_key import RecordKey, StoreError, TooLarge
from server.storage.shares import Shares
from server.storage.table import Table

T = TypeVar("T")


class RecordStore:
    """JSON values by key. One thread does everything; tenants take turns at it, and calls of one come in their order.

    It rests between calls, because it holds the interpreter lock while it takes large values apart.
    """

    def __init__(self, path: Path | None, *, max_records: int, max_bytes: int) -> None:
        """
        Args:
            path: of the file; None: in memory. A file is opened at once, so that a bad path is known at the start.
            max_records, max_bytes: beyond them the least recently used records of the owner who has the most go.

        Raises:
            StoreError: the file cannot be used.
        """
        self._path = path
        self._shares = Shares(max_records, max_bytes)
        self._thread = FairPool(1, "store", rests=True)
        self._table: Table | None = None
        self._is_closed = False
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

    async def put(self, key: RecordKey, value: Any) -> None:
        """Sets the value of `key`, which counts as used. It must not be changed while the call lasts.

        Raises:
            TooLarge: it does not fit.
            StoreError: the store cannot be written; in both cases nothing has changed.
        """
        await self._run(lambda table: table.put(key, orjson.dumps(value)))

    async def get(self, key: RecordKey) -> Any | None:
        """The value of `key`, which counts as used; None where there is none.

        Raises:
            StoreError: the store cannot be read.
        """
        return await self.read(key, orjson.loads)

    async def read(self, key: RecordKey, pick: Callable[[bytes], T]) -> T | None:
        """What `pick` makes of the value's bytes; the value counts as used. None where there is none.

        A parser holds the interpreter lock from beginning to end. What needs only a part of a large value, or can take
        it apart, should not parse the whole.

        Args:
            pick: runs in the store's thread, and what it raises is raised here.

        Raises:
            StoreError: the store cannot be read.
        """

        def work(table: Table) -> T | None:
            content = table.get(key)
            return None if content is None else pick(content)

        return await self._run_read(work)

    async def delete(self, key: RecordKey) -> bool:
        """Whether there was such a record.

        Raises:
            StoreError: the store cannot be written.
        """
        return await self._run(lambda table: table.delete(key))

    async def put_made(self, key: RecordKey, make: Callable[[], bytes]) -> None:
        """As `put`, of the bytes that `make` returns in the store's thread, in a form that `read` and `change`
        understand.
        """
        await self._run(lambda table: table.put(key, make()))

    async def change(self, key: RecordKey, change: Callable[[bytes], bytes | None]) -> bytes | None:
        """Sets the bytes of `key` to what `change` makes of them, with nothing else in between; returns the new ones.

        Args:
            change: from the bytes to the new ones, or None to leave everything as it is. It runs in the store's
                thread, and what it raises is raised here. It is not called where there is no such record.

        Raises:
            StoreError: as `put`.
        """

        def work(table: Table) -> bytes | None:
            content = table.get(key)
            changed = None if content is None else change(content)
            if changed is not None:
                table.put(key, changed)
            return changed

        return await self._run(work)

    async def follow(self, key: RecordKey, next_id: Callable[[Any], str | None], most: int) -> list[Any]:
        """The value of `key`, and of each record that the one before it names, the first one first.

        Args:
            next_id: the id that a value names, of the same kind and owner; None where it names none.
            most: bytes of all values together, as JSON.

        Raises:
            KeyError: a record is missing; its argument is the id.
            TooLarge: the values have more bytes than `most`.
            StoreError: the store cannot be read.
        """

        def work(table: Table) -> list[Any]:
            values: list[Any] = []
            num_bytes, asked, seen = 0, key, set[str]()
            while asked.id not in seen:
                seen.add(asked.id)
                content = table.get(asked)
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

        return await self._run_read(work)

    async def keys(self, kind: str) -> list[RecordKey]:
        """The keys of all records of a kind, of all owners; the least recently used comes first.

        Raises:
            StoreError: the store cannot be read.
        """
        return await self._run_read(lambda table: table.keys(kind))

    async def close(self) -> None:
        """Ends after the calls that were made before; later ones are refused, and so are reads that still wait.

        Idempotent.
        """
        if self._is_closed:
            return
        self._is_closed = True
        await asyncio.wrap_future(self._thread.finish(self._close))

    async def _run(self, work: Callable[[Table], T]) -> T:
        """The result of `work`. It happens even where its waiter is cancelled."""
        future = asyncio.wrap_future(self._submit(work))
        future.add_done_callback(_look_at)
        return await asyncio.shield(future)

    async def _run_read(self, work: Callable[[Table], T]) -> T:
        """The result of `work`, which changes nothing. It is left out where its waiter is cancelled before its turn.

        Otherwise clients that ask and leave would fill the queue with work of which nobody reads the result.
        """

        def read(table: Table) -> T:
            self._check_open()  # once more: the end of the server does not wait for what was to be read
            return work(table)

        return await asyncio.wrap_future(self._submit(read))

    def _submit(self, work: Callable[[Table], T]) -> Future[T]:
        self._check_open()
        return self._thread.submit(caller(), partial(self._work, work))

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreError("the store is closed")

    def _work(self, work: Callable[[Table], T]) -> T:
        with SHORT_SWITCHES:
            return work(self._open())

    def _open(self) -> Table:
        if self._table is None:
            self._table = Table(self._path, self._shares)
        return self._table

    def _close(self) -> None:
        if self._table is not None:
            self._table.close()


def _look_at(future: asyncio.Future[Any]) -> None:
    """Keeps asyncio from complaining about an exception that nobody waits for any more."""
    if not future.cancelled():
        future.exception()
