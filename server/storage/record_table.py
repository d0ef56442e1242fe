"""The table of records, with its keys and bounds. Everything here blocks and belongs to the database's thread."""

from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from server.storage.database import Database, StoreError, TooLarge

OVERHEAD_BYTES = 256  # of a record besides its value: key, indices, pages that are not full

RECORD_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS records (
        number INTEGER PRIMARY KEY,
        kind TEXT NOT NULL, owner TEXT NOT NULL, id TEXT NOT NULL,
        used INTEGER NOT NULL,  -- ascends with each use
        size INTEGER NOT NULL,  -- bytes, OVERHEAD_BYTES included
        UNIQUE (kind, owner, id)
    )""",
    "CREATE INDEX IF NOT EXISTS by_use ON records (owner, used)",
    # Apart, because each use writes the whole row of the other table.
    "CREATE TABLE IF NOT EXISTS contents (number INTEGER PRIMARY KEY, value BLOB NOT NULL)",
)
_WHERE = "WHERE kind = ? AND owner = ? AND id = ?"


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

    def __init__(self, database: Database, shares: OwnerQuotas) -> None:
        """Args:
        database: with the tables of RECORD_SCHEMA.
        """
        self.database = database
        self._run = database.run
        self._shares = shares
        self._num_uses = 0
        database.on_rollback(self._count)
        with database.reading():
            (self._num_uses,) = self._run("SELECT coalesce(max(used), 0) FROM records").fetchone()
            self._count()
        with database.transaction():
            self._make_room()  # the bounds may be narrower than last time

    def put(self, key: RecordKey, value: bytes) -> None:
        """Sets the value of `key`, and evicts others where there is no room; raises TooLarge if it alone has none."""
        size = len(value) + sum(len(part.encode()) for part in key) + OVERHEAD_BYTES
        if size > self._shares.max_bytes:
            raise TooLarge(f"a record of {size} bytes does not fit into a store of {self._shares.max_bytes} bytes")
        with self.database.transaction():
            self._remove(key)
            number = self._run(
                "INSERT INTO records (kind, owner, id, used, size) VALUES (?, ?, ?, ?, ?)",
                (*key, self._next_use(), size),
            ).lastrowid
            self._run("INSERT INTO contents (number, value) VALUES (?, ?)", (number, value))
            self._shares.add(key.owner, 1, size)
            self._make_room()

    def get(self, key: RecordKey) -> bytes | None:
        with self.database.reading():
            row = self._run(f"SELECT number, value FROM records JOIN contents USING (number) {_WHERE}", key).fetchone()
        if row is None:
            return None
        with suppress(StoreError), self.database.transaction():  # a disk that is full or read-only can still be read
            self._run("UPDATE records SET used = ? WHERE number = ?", (self._next_use(), row[0]))
        return bytes(row[1])

    def delete(self, key: RecordKey) -> bool:
        """Deletes a record; returns whether there was one."""
        with self.database.transaction():
            return self._remove(key)

    def keys(self, kind: str) -> list[RecordKey]:
        """The keys of all records of a kind, of all owners; the least recently used comes first."""
        with self.database.reading():
            rows = self._run("SELECT kind, owner, id FROM records WHERE kind = ? ORDER BY used", (kind,))
            return [RecordKey(*row) for row in rows]

    def check(self) -> None:
        """Raises StoreError if the table cannot be written to. A record is written and deleted again."""
        key = RecordKey("check", "", "check")
        self.put(key, b"")
        self.delete(key)

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
