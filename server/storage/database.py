"""One SQLite database. Everything here blocks and belongs to one thread.

The database is in memory, or in a file with a write-ahead log: what has been put there survives a process that is
killed at any moment. A crash of the whole machine may lose the last records, and never harms the others.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from engine.interface.regular_file import check_regular

APPLICATION_ID = 0x45414752  # "EAGR", in the header of the file
SCHEMA_VERSION = 1

_LOCK_TIMEOUT_S = 2.0  # for a server that is just ending
_MAX_LOG_BYTES = 16 << 20  # of the write-ahead log after a checkpoint


class StoreError(RuntimeError):
    """The store cannot be used: its file is unusable, its disk is full, a record is too large."""


class TooLarge(StoreError):
    """A record, or several that are read together, have too many bytes."""


class Database:
    """A connection to a database that this process alone has open.

    Every method raises StoreError, and has changed nothing, if the file cannot be used.
    """

    def __init__(self, path: Path | None, schema: Sequence[str]) -> None:
        """Args:
        path: of the file; None: in memory.
        schema: statements that create the tables where they do not exist.
        """
        self._path = path
        self.write_error: str | None = None  # of the last transaction
        self._on_rollback: list[Callable[[], object]] = []
        try:
            if path is not None:
                _make_private(path)
            self._database = sqlite3.connect(path or ":memory:", timeout=_LOCK_TIMEOUT_S, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise self._unusable(error) from error
        try:
            self._identity = self._find_file()
            self._open(schema)
        except StoreError:
            self._database.close()
            raise
        except sqlite3.Error as error:
            self._database.close()
            raise self._unusable(error) from error

    def close(self) -> None:
        self._database.close()

    def on_rollback(self, count: Callable[[], object]) -> None:
        """Calls `count` after each transaction that has failed, whose counts are wrong then."""
        self._on_rollback.append(count)

    def run(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Runs a statement, within `reading` or `transaction`."""
        return self._database.execute(statement, values)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Within it statements read."""
        self.check_file()
        try:
            yield
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything within happens, or nothing."""
        try:
            with self.reading():
                self.run("BEGIN")
                try:
                    yield
                    self.run("COMMIT")
                except BaseException:
                    if self._database.in_transaction:
                        self.run("ROLLBACK")
                    for count in self._on_rollback:
                        count()
                    raise
        except StoreError as error:
            self.write_error = str(error)
            raise
        self.write_error = None

    def check_file(self) -> None:
        """Raises StoreError if the file was deleted, or replaced by another.

        The system lets a program write to a file that was deleted, and all that is written is lost.
        """
        if self._find_file() != self._identity:
            raise self._unusable("its file was replaced by another")

    def _find_file(self) -> tuple[int, int] | None:
        """Device and inode of the file at the path; None in memory. Raises StoreError if there is none."""
        if self._path is None:
            return None
        try:
            status = os.stat(self._path)
        except OSError as error:
            raise self._unusable(error) from error
        return status.st_dev, status.st_ino

    def _open(self, schema: Sequence[str]) -> None:
        # One process alone has the file: counts in memory know nothing of another's writes.
        self.run("PRAGMA locking_mode = EXCLUSIVE")
        (version,) = self.run("PRAGMA user_version").fetchone()
        (application,) = self.run("PRAGMA application_id").fetchone()
        (num_tables,) = self.run("SELECT count(*) FROM sqlite_master").fetchone()
        if num_tables and application != APPLICATION_ID:
            raise self._unusable("it is a database of another program")
        if version > SCHEMA_VERSION:
            raise self._unusable(f"it has version {version}, and this Eagre knows version {SCHEMA_VERSION}")
        self.run("PRAGMA journal_mode = WAL")
        self.run("PRAGMA synchronous = NORMAL")
        self.run(f"PRAGMA journal_size_limit = {_MAX_LOG_BYTES}")
        self.run("BEGIN EXCLUSIVE")  # takes the lock, which lasts until the database is closed
        if version == 0:
            self.run(f"PRAGMA application_id = {APPLICATION_ID}")
            self.run(f"PRAGMA user_version = {SCHEMA_VERSION}")
        for statement in schema:  # tables that a file of an earlier Eagre lacks do not change its version
            self.run(statement)
        self.run("COMMIT")

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
