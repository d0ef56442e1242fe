"""The table of batches and of their lines that have no answer yet. Everything here blocks, in the database's thread.

One transaction deletes a line and writes its answer to the batch's file of answers. So each line has one answer,
whenever the process is killed.
"""

import secrets
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from server.storage.database import Database
from server.storage.file_table import FileState, FileTable

LINE_OVERHEAD_BYTES = 128  # of a line besides its custom_id, which is stored twice
MAX_ENDED = 1000  # batches of one owner that have ended; the oldest go first
OUTPUT_PURPOSE = "batch_output"

BATCH_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS batches (
        number INTEGER PRIMARY KEY,
        owner TEXT NOT NULL, id TEXT NOT NULL UNIQUE,
        status TEXT NOT NULL, is_open INTEGER NOT NULL,
        created INTEGER NOT NULL, expires INTEGER NOT NULL,  -- seconds since 1970
        input INTEGER NOT NULL, output INTEGER, errors INTEGER,  -- numbers of files
        total INTEGER NOT NULL DEFAULT 0, completed INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0,
        size INTEGER NOT NULL DEFAULT 0,  -- bytes of its lines
        input_tokens INTEGER NOT NULL DEFAULT 0, cached_tokens INTEGER NOT NULL DEFAULT 0,
        output_tokens INTEGER NOT NULL DEFAULT 0, reasoning_tokens INTEGER NOT NULL DEFAULT 0,
        fields BLOB NOT NULL  -- what only its object has, as JSON
    )""",
    "CREATE INDEX IF NOT EXISTS batches_of_owner ON batches (owner, number)",
    """CREATE TABLE IF NOT EXISTS lines (
        batch INTEGER NOT NULL, number INTEGER NOT NULL,
        start INTEGER NOT NULL, size INTEGER NOT NULL,  -- its place in the input file
        attempts INTEGER NOT NULL DEFAULT 0,  -- how often its computation was begun
        custom_id TEXT NOT NULL,
        PRIMARY KEY (batch, number), UNIQUE (batch, custom_id)
    ) WITHOUT ROWID""",
)
_COLUMNS = (
    "number, owner, id, status, is_open, created, expires, input, total, completed, failed, input_tokens, "
    "cached_tokens, output_tokens, reasoning_tokens, fields"
)


class TokenCounts(NamedTuple):
    """What a line has used."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


class StoredBatch(NamedTuple):
    """A batch."""

    number: int
    owner: str
    id: str
    status: str
    is_open: bool
    created: int
    expires: int
    input: int  # the number of its file
    total: int
    completed: int
    failed: int
    usage: TokenCounts
    fields: Mapping[str, Any]


class BatchLine(NamedTuple):
    """A line that has no answer yet."""

    number: int
    start: int
    size: int
    attempts: int  # of earlier computations that had no end
    custom_id: str


class DuplicateId(Exception):
    """A batch has two lines with one custom_id."""

    def __init__(self, line: int, custom_id: str) -> None:
        super().__init__(f"line {line} has the custom_id of an earlier one")
        self.line = line
        self.custom_id = custom_id


class TooManyOpen(Exception):
    """An owner has as many open batches as it may have."""


class BatchTable:
    """Batches by owner and id. Every method raises StoreError, and has changed nothing, if the store cannot be used."""

    def __init__(self, database: Database, files: FileTable) -> None:
        """Args:
        database: with the tables of BATCH_SCHEMA.
        files: the files that batches read and write, of the same database.
        """
        self._database = database
        self._run = database.run
        self._files = files
        database.on_rollback(self._count)  # behind that of `files`, which begins the counts
        with database.reading():
            self._count()

    def create(
        self, owner: str, batch_id: str, created: int, expires: int, file: int, fields: Mapping[str, Any], max_open: int
    ) -> StoredBatch:
        """A new batch, which is to be validated; raises TooManyOpen."""
        with self._database.reading():  # a transaction that fails counts all that is stored anew
            (num_open,) = self._run("SELECT count(*) FROM batches WHERE owner = ? AND is_open = 1", (owner,)).fetchone()
        if num_open >= max_open:
            raise TooManyOpen
        with self._database.transaction():
            self._run(
                "DELETE FROM batches WHERE number IN (SELECT number FROM batches WHERE owner = ? AND is_open = 0 "
                "ORDER BY number DESC LIMIT -1 OFFSET ?)",
                (owner, MAX_ENDED - 1),
            )
            number = self._run(
                "INSERT INTO batches (owner, id, status, is_open, created, expires, input, fields) "
                "VALUES (?, ?, 'validating', 1, ?, ?, ?, ?)",
                (owner, batch_id, created, expires, file, orjson.dumps(fields)),
            ).lastrowid
            assert number is not None
            return self._of(number)

    def get(self, owner: str, batch_id: str) -> StoredBatch | None:
        with self._database.reading():
            row = self._run(f"SELECT {_COLUMNS} FROM batches WHERE owner = ? AND id = ?", (owner, batch_id)).fetchone()
        return None if row is None else _batch(row)

    def find(self, number: int) -> StoredBatch:
        """The batch of this number, which is there."""
        with self._database.reading():
            return self._of(number)

    def page(self, owner: str, *, after: int | None, limit: int) -> Sequence[StoredBatch]:
        """The owner's batches, the newest first, behind the number `after`."""
        where, values = ("", []) if after is None else (" AND number < ?", [after])
        with self._database.reading():
            rows = self._run(
                f"SELECT {_COLUMNS} FROM batches WHERE owner = ?{where} ORDER BY number DESC LIMIT ?",
                [owner, *values, limit],
            )
            return [_batch(row) for row in rows]

    def open_batches(self) -> Sequence[StoredBatch]:
        """All batches that have not ended, the oldest first."""
        with self._database.reading():
            rows = self._run(f"SELECT {_COLUMNS} FROM batches WHERE is_open = 1 ORDER BY number")
            return [_batch(row) for row in rows]

    def counts(self) -> tuple[int, int]:
        """How many batches are open, and how many of their lines have no answer yet."""
        with self._database.reading():
            (num_batches,) = self._run("SELECT count(*) FROM batches WHERE is_open = 1").fetchone()
            (num_lines,) = self._run("SELECT count(*) FROM lines").fetchone()
        return num_batches, num_lines

    def change(
        self, number: int, status: str | None, fields: Mapping[str, Any], *, only_if: Sequence[str] | None = None
    ) -> StoredBatch:
        """Sets the status, if one is given, and fields of the object, if its status is one of `only_if`."""
        with self._database.transaction():
            batch = self._of(number)
            if only_if is not None and batch.status not in only_if:
                return batch
            self._run(
                "UPDATE batches SET status = ?, fields = ? WHERE number = ?",
                (status or batch.status, orjson.dumps({**batch.fields, **fields}), number),
            )
            return self._of(number)

    def add_lines(self, number: int, lines: Sequence[BatchLine], *, is_shared: bool) -> None:
        """Adds lines of the input file to a batch that is being validated; raises DuplicateId, FilesFull."""
        size = sum(LINE_OVERHEAD_BYTES + 2 * len(line.custom_id.encode()) for line in lines)
        with self._database.transaction():
            owner = self._of(number).owner
            self._files.num_bytes.check(owner, size, is_shared=is_shared)
            for line in lines:
                try:
                    self._run(
                        "INSERT INTO lines (batch, number, start, size, custom_id) VALUES (?, ?, ?, ?, ?)",
                        (number, line.number, line.start, line.size, line.custom_id),
                    )
                except sqlite3.IntegrityError:
                    raise DuplicateId(line.number, line.custom_id) from None
            self._run(
                "UPDATE batches SET size = size + ?, total = total + ? WHERE number = ?", (size, len(lines), number)
            )
            self._files.num_bytes.add(owner, size)

    def drop_lines(self, number: int) -> bool:
        """Drops the lines of a batch that is being validated; returns False where it is not."""
        with self._database.transaction():
            if self._of(number).status != "validating":
                return False
            self._drop_lines(number)
            self._run("UPDATE batches SET total = 0 WHERE number = ?", (number,))
            return True

    def take_lines(self, number: int, after: int, limit: int) -> Sequence[BatchLine]:
        """The next lines behind the line `after`."""
        with self._database.reading():
            rows = self._run(
                "SELECT number, start, size, attempts, custom_id FROM lines WHERE batch = ? AND number > ? "
                "ORDER BY number LIMIT ?",
                (number, after, limit),
            )
            return [BatchLine(*row) for row in rows]

    def count_attempt(self, number: int, line: int, amount: int = 1) -> None:
        """Notes that the computation of a line begins, or with -1 that it was ended in good order."""
        with self._database.transaction():
            self._run("UPDATE lines SET attempts = attempts + ? WHERE batch = ? AND number = ?", (amount, number, line))

    def record(self, number: int, line: int, value: bytes, usage: TokenCounts, *, has_failed: bool) -> bool:
        """Writes the answer to a line, which is done from now on; returns False where it was done before."""
        with self._database.transaction():
            return self._record(self._of(number), line, value, usage, has_failed=has_failed)

    def fail_lines(self, number: int, limit: int, make: Callable[[str], bytes]) -> int:
        """Writes what `make` makes of the custom_id as the error of the next lines; returns how many these were."""
        with self._database.transaction():
            batch = self._of(number)
            rows = self._run(
                "SELECT number, custom_id FROM lines WHERE batch = ? ORDER BY number LIMIT ?", (number, limit)
            ).fetchall()
            for line, custom_id in rows:
                self._record(batch, line, make(custom_id), TokenCounts(), has_failed=True)
            return len(rows)

    def end(self, number: int, status: str, fields: Mapping[str, Any], now: int) -> StoredBatch:
        """Ends a batch: its files are there for its owner from now on, and lines without an answer are dropped."""
        with self._database.transaction():
            batch = self._of(number)
            if not batch.is_open:
                return batch
            self._drop_lines(number)
            output, errors = self._run("SELECT output, errors FROM batches WHERE number = ?", (number,)).fetchone()
            lifetime, ids = batch.fields.get("output_lifetime"), {}
            expires = None if lifetime is None else now + lifetime
            for name, file in (("output_file_id", output), ("error_file_id", errors)):
                if file is not None:
                    ids[name] = self._files.publish(file, now, expires)
            self._run(
                "UPDATE batches SET status = ?, is_open = 0, fields = ? WHERE number = ?",
                (status, orjson.dumps({**batch.fields, **fields, **ids}), number),
            )
            self._drop_unused_files()
            return self._of(number)

    def delete_file(self, owner: str, file_id: str) -> bool:
        """Deletes a file for its owner, and its content when no open batch reads it; whether there was one."""
        was_there = self._files.mark_deleted(owner, file_id)
        if was_there:
            self.drop_unused_files()
        return was_there

    def drop_unused_files(self) -> None:
        """Drops the content of deleted and expired files that no open batch reads."""
        with self._database.transaction():
            self._drop_unused_files()

    def _drop_unused_files(self) -> None:
        self._files.drop_deleted([file for (file,) in self._run("SELECT input FROM batches WHERE is_open = 1")])

    def _record(self, batch: StoredBatch, line: int, value: bytes, usage: TokenCounts, *, has_failed: bool) -> bool:
        if not self._run("DELETE FROM lines WHERE batch = ? AND number = ?", (batch.number, line)).rowcount:
            return False
        column, count = ("errors", "failed") if has_failed else ("output", "completed")
        (file,) = self._run(f"SELECT {column} FROM batches WHERE number = ?", (batch.number,)).fetchone()
        if file is None:
            name = f"{batch.id}_{'error' if has_failed else 'output'}.jsonl"
            file = self._files.insert(
                batch.owner, new_file_id(), name, OUTPUT_PURPOSE, batch.created, None, FileState.GROWING
            )
            self._run(f"UPDATE batches SET {column} = ? WHERE number = ?", (file, batch.number))
        self._files.add_piece(file, batch.owner, line, value)
        self._run(
            f"UPDATE batches SET {count} = {count} + 1, input_tokens = input_tokens + ?, "
            "cached_tokens = cached_tokens + ?, output_tokens = output_tokens + ?, "
            "reasoning_tokens = reasoning_tokens + ? WHERE number = ?",
            (*usage, batch.number),
        )
        return True

    def _drop_lines(self, number: int) -> None:
        owner, size = self._run("SELECT owner, size FROM batches WHERE number = ?", (number,)).fetchone()
        self._run("DELETE FROM lines WHERE batch = ?", (number,))
        self._run("UPDATE batches SET size = 0 WHERE number = ?", (number,))
        self._files.num_bytes.add(owner, -size)

    def _of(self, number: int) -> StoredBatch:
        return _batch(self._run(f"SELECT {_COLUMNS} FROM batches WHERE number = ?", (number,)).fetchone())

    def _count(self) -> None:
        for owner, size in self._run("SELECT owner, sum(size) FROM batches GROUP BY owner"):
            self._files.num_bytes.add(owner, size)


def new_file_id() -> str:
    """The id of a new file."""
    return f"file-{secrets.token_hex(16)}"


def new_batch_id() -> str:
    """The id of a new batch."""
    return f"batch_{secrets.token_hex(16)}"


def _batch(row: Sequence[Any]) -> StoredBatch:
    values = (*row[:4], bool(row[4]), *row[5:11], TokenCounts(*row[11:15]), orjson.loads(row[15]))
    return StoredBatch._make(values)
