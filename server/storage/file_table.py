"""The table of files that clients upload and that batches write. Everything here blocks, in the database's thread.

A file is stored in pieces, so that neither writing nor reading it needs all of it in memory.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from server.storage.database import Database

FILE_OVERHEAD_BYTES = 4096  # of a file besides its pieces

FILE_SCHEMA = (
    # No number is used again: who still reads a file that was deleted must not get another owner's pieces.
    """CREATE TABLE IF NOT EXISTS files (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        owner TEXT NOT NULL, id TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL, purpose TEXT NOT NULL,
        created INTEGER NOT NULL, expires INTEGER,  -- seconds since 1970
        state INTEGER NOT NULL,  -- of FileState
        size INTEGER NOT NULL  -- bytes of its pieces
    )""",
    "CREATE INDEX IF NOT EXISTS files_of_owner ON files (owner, number)",
    """CREATE TABLE IF NOT EXISTS pieces (
        file INTEGER NOT NULL,
        start INTEGER NOT NULL,  -- the order of the pieces; of an uploaded file the place of the first byte
        value BLOB NOT NULL,
        UNIQUE (file, start)
    )""",
)
_COLUMNS = "number, owner, id, name, purpose, created, expires, state, size"


class FileState(IntEnum):
    """The state of a stored file. Its owner sees only those that are ready."""

    ARRIVING = 0  # it is being uploaded
    READY = 1
    GROWING = 2  # a running batch writes it
    DELETED = 3  # and not dropped yet, because a running batch reads it


class StoredFile(NamedTuple):
    """A file without its content."""

    number: int
    owner: str
    id: str
    name: str
    purpose: str
    created: int
    expires: int | None
    state: int
    size: int


class FilesFull(Exception):
    """There is no room for more bytes of an owner's files."""

    def __init__(self, num_bytes: int, total: int, limit: int) -> None:
        super().__init__(f"files hold {total} bytes, {num_bytes} of them of one key; the limit is {limit}")
        self.num_bytes = num_bytes
        self.total = total
        self.limit = limit


class FileBytes:
    """Counts the bytes of files and of batches' lines by their owners, and says who may have more."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._by_owner: dict[str, int] = {}

    def add(self, owner: str, num_bytes: int) -> None:
        """Counts bytes that have come, or with a negative number, that have gone."""
        self.total += num_bytes
        self._by_owner[owner] = self._by_owner.get(owner, 0) + num_bytes
        if not self._by_owner[owner]:
            del self._by_owner[owner]

    def clear(self) -> None:
        self.total = 0
        self._by_owner = {}

    def check(self, owner: str, num_bytes: int, *, is_shared: bool) -> None:
        """Raises FilesFull. Where owners share the room, one may have half of what the others leave."""
        if num_bytes > self.room(owner, is_shared=is_shared):
            raise FilesFull(self._by_owner.get(owner, 0), self.total, self.limit)

    def room(self, owner: str, *, is_shared: bool) -> int:
        """The bytes that an owner may still add; below 0 where its batches have written more than it may have."""
        own = self._by_owner.get(owner, 0)
        room = self.limit - (self.total - own)
        return (room // 2 if is_shared else room) - own


class FileTable:
    """Files by owner and id. Every method raises StoreError, and has changed nothing, if the store cannot be used."""

    def __init__(self, database: Database, num_bytes: FileBytes) -> None:
        """Args:
        database: with the tables of FILE_SCHEMA.
        num_bytes: counts the bytes of the files; cleared here.
        """
        self._database = database
        self._run = database.run
        self.num_bytes = num_bytes
        database.on_rollback(self._count)
        with database.transaction():
            for row in self._run(f"SELECT {_COLUMNS} FROM files WHERE state = ?", (FileState.ARRIVING,)).fetchall():
                self._drop(StoredFile(*row))  # its upload ended with an earlier process
        with database.reading():
            self._count()

    def create(self, owner: str, file_id: str, created: int, *, is_shared: bool) -> int:
        """Begins an upload; returns the number of its file. Raises FilesFull."""
        self.num_bytes.check(owner, FILE_OVERHEAD_BYTES, is_shared=is_shared)
        with self._database.transaction():
            return self.insert(owner, file_id, "", "", created, None, FileState.ARRIVING)

    def insert(
        self, owner: str, file_id: str, name: str, purpose: str, created: int, expires: int | None, state: FileState
    ) -> int:
        """Begins an empty file whether there is room for it or not, within a transaction of the caller's."""
        number = self._run(
            "INSERT INTO files (owner, id, name, purpose, created, expires, state, size) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, 0)",
            (owner, file_id, name, purpose, created, expires, state),
        ).lastrowid
        assert number is not None
        self.num_bytes.add(owner, FILE_OVERHEAD_BYTES)
        return number

    def append(self, number: int, owner: str, start: int, value: bytes, *, is_shared: bool) -> None:
        """Adds a piece to a file that is being uploaded; raises FilesFull."""
        self.num_bytes.check(owner, len(value), is_shared=is_shared)
        with self._database.transaction():
            self.add_piece(number, owner, start, value)

    def add_piece(self, number: int, owner: str, start: int, value: bytes) -> None:
        """Adds a piece whether there is room for it or not, within a transaction of the caller's."""
        self._run("INSERT INTO pieces (file, start, value) VALUES (?, ?, ?)", (number, start, value))
        self._run("UPDATE files SET size = size + ? WHERE number = ?", (len(value), number))
        self.num_bytes.add(owner, len(value))

    def finish(self, number: int, name: str, purpose: str, expires: int | None) -> StoredFile:
        """Ends an upload; the file is there from now on."""
        with self._database.transaction():
            self._run(
                "UPDATE files SET name = ?, purpose = ?, expires = ?, state = ? WHERE number = ?",
                (name, purpose, expires, FileState.READY, number),
            )
            return StoredFile(*self._run(f"SELECT {_COLUMNS} FROM files WHERE number = ?", (number,)).fetchone())

    def publish(self, number: int, created: int, expires: int | None) -> str:
        """Shows a file that a batch has written to its owner, within a transaction of the caller's; returns its id."""
        self._run(
            "UPDATE files SET state = ?, created = ?, expires = ? WHERE number = ?",
            (FileState.READY, created, expires, number),
        )
        (file_id,) = self._run("SELECT id FROM files WHERE number = ?", (number,)).fetchone()
        return str(file_id)

    def discard(self, number: int) -> None:
        """Drops a file of any state, if it is there."""
        with self._database.transaction():
            for row in self._run(f"SELECT {_COLUMNS} FROM files WHERE number = ?", (number,)).fetchall():
                self._drop(StoredFile(*row))

    def get(self, owner: str, file_id: str) -> StoredFile | None:
        """The owner's file that is ready."""
        where = "WHERE owner = ? AND id = ? AND state = ?"
        with self._database.reading():
            row = self._run(f"SELECT {_COLUMNS} FROM files {where}", (owner, file_id, FileState.READY)).fetchone()
        return None if row is None else StoredFile(*row)

    def page(
        self, owner: str, *, purpose: str | None, after: int | None, limit: int, is_ascending: bool
    ) -> Sequence[StoredFile]:
        """The owner's files that are ready, by their numbers, behind the number `after`."""
        where, values = "owner = ? AND state = ?", [owner, FileState.READY]
        if purpose is not None:
            where, values = where + " AND purpose = ?", [*values, purpose]
        if after is not None:
            where, values = where + f" AND number {'>' if is_ascending else '<'} ?", [*values, after]
        order = "ASC" if is_ascending else "DESC"
        with self._database.reading():
            rows = self._run(
                f"SELECT {_COLUMNS} FROM files WHERE {where} ORDER BY number {order} LIMIT ?", [*values, limit]
            )
            return [StoredFile(*row) for row in rows]

    def mark_deleted(self, owner: str, file_id: str) -> bool:
        """Hides a file from its owner; `drop_deleted` drops it. Returns whether there was one."""
        with self._database.transaction():
            cursor = self._run(
                "UPDATE files SET state = ? WHERE owner = ? AND id = ? AND state = ?",
                (FileState.DELETED, owner, file_id, FileState.READY),
            )
            return cursor.rowcount > 0

    def mark_expired(self, now: int) -> None:
        """Hides the files whose time is over."""
        with self._database.transaction():
            self._run(
                "UPDATE files SET state = ? WHERE expires <= ? AND state = ?", (FileState.DELETED, now, FileState.READY)
            )

    def drop_deleted(self, used: Sequence[int]) -> None:
        """Drops the hidden files but those of the numbers `used`, within a transaction of the caller's."""
        rows = self._run(f"SELECT {_COLUMNS} FROM files WHERE state = ?", (FileState.DELETED,)).fetchall()
        for file in (StoredFile(*row) for row in rows):
            if file.number not in used:
                self._drop(file)

    def read_range(self, number: int, start: int, size: int) -> bytes:
        """Some bytes of an uploaded file; fewer at its end."""
        with self._database.reading():
            rows = self._run(
                "SELECT start, value FROM pieces WHERE file = ? AND start < ? AND start >= coalesce("
                "(SELECT max(start) FROM pieces WHERE file = ? AND start <= ?), 0) ORDER BY start",
                (number, start + size, number, start),
            ).fetchall()
        if not rows:
            return b""
        first = rows[0][0]
        return b"".join(value for _, value in rows)[start - first : start - first + size]

    def read_pieces(self, number: int, after: int, most: int) -> tuple[bytes, int]:
        """The pieces behind the place `after`, as many as have `most` bytes or one; and the place of the last one."""
        pieces: list[bytes] = []
        num_bytes = 0
        with self._database.reading():
            for start, value in self._run(
                "SELECT start, value FROM pieces WHERE file = ? AND start > ? ORDER BY start", (number, after)
            ):
                pieces.append(value)
                num_bytes += len(value)
                after = start
                if num_bytes >= most:
                    break
        return b"".join(pieces), after

    def _drop(self, file: StoredFile) -> None:
        self._run("DELETE FROM pieces WHERE file = ?", (file.number,))
        self._run("DELETE FROM files WHERE number = ?", (file.number,))
        self.num_bytes.add(file.owner, -(file.size + FILE_OVERHEAD_BYTES))

    def _count(self) -> None:
        self.num_bytes.clear()
        for owner, num_files, num_bytes in self._run("SELECT owner, count(*), sum(size) FROM files GROUP BY owner"):
            self.num_bytes.add(owner, num_bytes + num_files * FILE_OVERHEAD_BYTES)
