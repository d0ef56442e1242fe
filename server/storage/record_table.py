"""The table of records in SQLite, with its keys and errors. Everything here blocks and belongs to one thread.

The database is in memory, or in a file with a write-ahead log: what has been put there survives a process that is
killed at any moment. A crash of the whole machine may lose the last records, and never harms the others.
"""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from engine.interface.regular_file import check_regular

APPLICATION_ID = 0x45414752  # "EAGR", in the header of the file
SCHEMA_VERSION = 1
OVERHEAD_BYTES = 256  # of a record besides its value: key, indices, pages that are not full

_LOCK_TIMEOUT_S = 2.0  # for a server that is just ending
_MAX_LOG_BYTES = 16 << 20  # of the write-ahead log after a checkpoint

_SCHEMA = (
    """CREATE TABLE records (
        number INTEGER PRIMARY KEY,
        kind TEXT NOT NULL, owner TEXT NOT NULL, id TEXT NOT NULL,
        used INTEGER NOT NULL,  -- ascends with each use
        size INTEGER NOT NULL,  -- bytes, OVERHEAD_BYTES included
        UNIQUE (kind, owner, id)
    )""",
    "CREATE INDEX by_use ON records (owner, used)",
    # Apart, because each use writes the whole row of the other table.
    "CREATE TABLE contents (number INTEGER PRIMARY KEY, value BLOB NOT NULL)",
)
_WHERE = "WHERE kind = ? AND owner = ? AND id = ?"


class StoreError(RuntimeError):
    """The store cannot be used: its file is unusable, its disk is full, a record is too large."""


class TooLarge(StoreError):
    """A record, or several that are read together, have too many bytes."""


class RecordKey(NamedTuple):
    """The key of a record. It has the owner, so that no owner can reach the records of another."""

    kind: str  # what sort of record it is: "response"
    owner: str  # whose it is: `Tenant.owner`
    id: str


@dataclass(slots=True)
class OwnerUsage:
    """The counts of one owner or of all together."""

    num_records: int = 0
    num_bytes: int = 0

    def add(self, num_records: int, num_bytes: int) -> None:
        self.num_records += num_records
        self.num_bytes += num_bytes


class OwnerQuotas:
    """Counts by owner. Those with the most are evicted first, so that no owner can push out another's records."""

    def __init__(self, max_records: int, max_bytes: int) -> None:
        self.max_records = max_records
        self.max_bytes = max_bytes
        self.total = OwnerUsage()
        self._owners: dict[str, OwnerUsage] = {}

    def add(self, owner: str, num_records: int, num_bytes: int) -> None:
        """Counts records that have come, or with negative numbers, that have gone."""
        share = self._owners.setdefault(owner, OwnerUsage())
        share.add(num_records, num_bytes)
        self.total.add(num_records, num_bytes)
        if share.num_records == 0:
            del self._owners[owner]

    def clear(self) -> None:
        self.total = OwnerUsage()
        self._owners = {}

    def owner_to_evict(self) -> str | None:
        """The owner whose least recently used record goes next; None while everything is within the bounds."""
        if self.total.num_bytes > self.max_bytes:
            return max(self._owners, key=lambda owner: self._owners[owner].num_bytes)
        if self.total.num_records > self.max_records:
            return max(self._owners, key=lambda owner: self._owners[owner].num_records)
        return None


class RecordTable:
    """Values by key, within bounds. Reading a record counts as use; the least recently used is evicted first.

    Every method raises StoreError, and has changed nothing, if the file cannot be used.
    """

    def __init__(self, path: Path | None, shares: OwnerQuotas) -> None:
        self._path = path
        self._shares = shares
        self._num_uses = 0
        self.write_error: str | None = None  # of the last transaction
        try:
            if path is not None:
                _make_private(path)
            self._database = sqlite3.connect(path or ":memory:", timeout=_LOCK_TIMEOUT_S, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise self._unusable(error) from error
        try:
            self._identity = self._find_file()
            self._open()
        except StoreError:
            self._database.close()
            raise
        except sqlite3.Error as error:
            self._database.close()
            raise self._unusable(error) from error

    def close(self) -> None:
        self._database.close()

    def put(self, key: RecordKey, value: bytes) -> None:
        """Sets the value of `key`, and evicts others where there is no room; raises TooLarge if it alone has none."""
        size = len(value) + sum(len(part.encode()) for part in key) + OVERHEAD_BYTES
        if size > self._shares.max_bytes:
            raise TooLarge(f"a record of {size} bytes does not fit into a store of {self._shares.max_bytes} bytes")
        with self._transaction():
            self._remove(key)
            number = self._run(
                "INSERT INTO records (kind, owner, id, used, size) VALUES (?, ?, ?, ?, ?)",
                (*key, self._next_use(), size),
            ).lastrowid
            self._run("INSERT INTO contents (number, value) VALUES (?, ?)", (number, value))
            self._shares.add(key.owner, 1, size)
            self._make_room()

    def get(self, key: RecordKey) -> bytes | None:
        with self._reading():
            row = self._run(f"SELECT number, value FROM records JOIN contents USING (number) {_WHERE}", key).fetchone()
        if row is None:
            return None
        with suppress(StoreError), self._transaction():  # what is on a disk that is full or read-only can still be read
            self._run("UPDATE records SET used = ? WHERE number = ?", (self._next_use(), row[0]))
        return bytes(row[1])

    def delete(self, key: RecordKey) -> bool:
        """Deletes a record; returns whether there was one."""
        with self._transaction():
            return self._remove(key)

    def keys(self, kind: str) -> list[RecordKey]:
        """The keys of all records of a kind, of all owners; the least recently used comes first."""
        with self._reading():
            rows = self._run("SELECT kind, owner, id FROM records WHERE kind = ? ORDER BY used", (kind,))
            return [RecordKey(*row) for row in rows]

    def check_file(self) -> None:
        """Raises StoreError if the file was deleted, or replaced by another.

        The system lets a program write to a file that was deleted, and all that is written is lost.
        """
        if self._find_file() != self._identity:
            raise self._unusable("its file was replaced by another")

    def check(self) -> None:
        """Raises StoreError if the table cannot be written to. A record is written and deleted again."""
        key = RecordKey("check", "", "check")
        self.put(key, b"")
        self.delete(key)

    def _find_file(self) -> tuple[int, int] | None:
        """Device and inode of the file at the path; None in memory. Raises StoreError if there is none."""
        if self._path is None:
            return None
        try:
            status = os.stat(self._path)
        except OSError as error:
            raise self._unusable(error) from error
        return status.st_dev, status.st_ino

    def _open(self) -> None:
        # One process alone has the file: the counts in `OwnerQuotas` know nothing of another's writes.
        self._run("PRAGMA locking_mode = EXCLUSIVE")
        (version,) = self._run("PRAGMA user_version").fetchone()
        (application,) = self._run("PRAGMA application_id").fetchone()
        (num_tables,) = self._run("SELECT count(*) FROM sqlite_master").fetchone()
        if num_tables and application != APPLICATION_ID:
            raise self._unusable("it is a database of another program")
        if version > SCHEMA_VERSION:
            raise self._unusable(f"it has version {version}, and this Eagre knows version {SCHEMA_VERSION}")
        self._run("PRAGMA journal_mode = WAL")
        self._run("PRAGMA synchronous = NORMAL")
        self._run(f"PRAGMA journal_size_limit = {_MAX_LOG_BYTES}")
        self._run("BEGIN EXCLUSIVE")  # takes the lock, which lasts until the database is closed
        if version == 0:
            self._run(f"PRAGMA application_id = {APPLICATION_ID}")
            self._run(f"PRAGMA user_version = {SCHEMA_VERSION}")
            for statement in _SCHEMA:
                self._run(statement)
        self._run("COMMIT")
        (self._num_uses,) = self._run("SELECT coalesce(max(used), 0) FROM records").fetchone()
        self._count()
        with self._transaction():
            self._make_room()  # the bounds may be narrower than last time

    @contextmanager
    def _reading(self) -> Iterator[None]:
        self.check_file()
        try:
            yield
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Everything within happens, or nothing."""
        try:
            with self._reading():
                self._run("BEGIN")
                try:
                    yield
                    self._run("COMMIT")
                except BaseException:
                    if self._database.in_transaction:
                        self._run("ROLLBACK")
                    self._count()
                    raise
        except StoreError as error:
            self.write_error = str(error)
            raise
        self.write_error = None

    def _run(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        return self._database.execute(statement, values)

    def _count(self) -> None:
        self._shares.clear()
        for owner, *counts in self._run("SELECT owner, count(*), sum(size) FROM records GROUP BY owner"):
            self._shares.add(owner, *counts)

    def _make_room(self) -> None:
        while (owner := self._shares.owner_to_evict()) is not None:
            oldest = "SELECT number, size FROM records WHERE owner = ? ORDER BY used LIMIT 1"
            self._drop(owner, *self._run(oldest, (owner,)).fetchone())

    def _remove(self, key: RecordKey) -> bool:
        row = self._run(f"SELECT number, size FROM records {_WHERE}", key).fetchone()
        if row is not None:
            self._drop(key.owner, *row)
        return row is not None

    def _drop(self, owner: str, number: int, size: int) -> None:
        self._run("DELETE FROM records WHERE number = ?", (number,))
        self._run("DELETE FROM contents WHERE number = ?", (number,))
        self._shares.add(owner, -1, -size)

    def _next_use(self) -> int:
        self._num_uses += 1
        return self._num_uses

    def _unusable(self, reason: object) -> StoreError:
        where = "memory" if self._path is None else str(self._path)
        said = reason.strerror if isinstance(reason, OSError) else reason
        if str(said) == "database is locked":
            said = "another process uses it"
        return StoreError(f"the store in {where} cannot be used: {said}")


def _make_private(path: Path) -> None:
    """Creates the file if it is missing, readable for its owner alone: it will hold clients' conversations."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        check_regular(descriptor, path)
    finally:
        os.close(descriptor)
