"""Records are found by kind, owner and id; the bounds hold; a file is there again, and a bad one is refused."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from server.storage.database import SCHEMA_VERSION, Database, StoreError
from server.storage.record_table import OVERHEAD_BYTES, RECORD_SCHEMA, OwnerQuotas, RecordKey, RecordTable

MANY = 1 << 20


def open_table(
    path: Path | None = None, *, records: int = MANY, num_bytes: int = MANY
) -> tuple[RecordTable, OwnerQuotas]:
    shares = OwnerQuotas(records, num_bytes)
    return RecordTable(Database(path, RECORD_SCHEMA), shares), shares


def key(name: str, owner: str = "") -> RecordKey:
    return RecordKey("response", owner, name)


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path(os.devnull)):
        with pytest.raises(StoreError, match=rf"the store in {path} cannot be used: it is .* and no regular file"):
            open_table(path)


def test_a_record_is_found_by_kind_owner_and_id_alone() -> None:
    table, _ = open_table()
    table.put(key("a", "ann"), b"1")
    table.put(key("a", "bob"), b"2")
    table.put(RecordKey("conversation", "ann", "a"), b"3")
    assert table.get(key("a", "ann")) == b"1"
    assert table.get(key("a", "bob")) == b"2"
    assert table.get(key("a", "eve")) is None
    assert table.delete(key("a", "ann"))
    assert not table.delete(key("a", "ann"))
    assert table.get(RecordKey("conversation", "ann", "a")) == b"3"
    assert table.keys("response") == [key("a", "bob")]


def test_the_least_recently_used_record_goes_first() -> None:
    table, shares = open_table(records=2)
    table.put(key("a"), b"1")
    table.put(key("b"), b"2")
    table.get(key("a"))
    table.put(key("c"), b"3")
    assert [record.id for record in table.keys("response")] == ["a", "c"]
    assert shares.total.num_records == 2


def test_who_stores_most_makes_way() -> None:
    table, shares = open_table(num_bytes=10 * (1000 + OVERHEAD_BYTES))
    table.put(key("old", "small"), b"x" * 1000)
    for number in range(20):
        table.put(key(str(number), "large"), b"x" * 1000)
    assert table.get(key("old", "small")) is not None
    assert table.get(key("19", "large")) is not None
    assert table.get(key("0", "large")) is None
    assert shares.total.num_bytes <= shares.max_bytes


def test_replacing_and_deleting_gives_the_bytes_back() -> None:
    table, shares = open_table()
    table.put(key("a"), b"x" * 100)
    one = shares.total.num_bytes
    table.put(key("a"), b"x" * 100)
    assert (shares.total.num_records, shares.total.num_bytes) == (1, one)
    table.delete(key("a"))
    assert (shares.total.num_records, shares.total.num_bytes) == (0, 0)


def test_a_record_that_can_never_fit_is_refused_and_changes_nothing() -> None:
    table, _ = open_table(num_bytes=2000)
    table.put(key("a"), b"before")
    with pytest.raises(StoreError, match=r"does not fit into a store of 2000 bytes"):
        table.put(key("a"), b"x" * 2000)
    assert table.get(key("a")) == b"before"


def test_a_file_is_read_again_within_bounds_that_may_have_become_narrower(tmp_path: Path) -> None:
    path = tmp_path / "store"
    table, _ = open_table(path)
    for name in "abc":
        table.put(key(name), name.encode())
    table.database.close()
    assert path.stat().st_mode & 0o777 == 0o600
    table, shares = open_table(path, records=2)
    assert (table.get(key("a")), table.get(key("b")), table.get(key("c"))) == (None, b"b", b"c")
    assert shares.total.num_records == 2
    table.database.close()


@pytest.mark.parametrize("pragma", ["query_only = 1", "max_page_count = 1"], ids=["read-only", "full"])
def test_a_disk_that_cannot_be_written_to_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pragma: str
) -> None:
    connections: list[sqlite3.Connection] = []

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connections.append(sqlite3.Connection(*arguments, **options))
        return connections[-1]

    monkeypatch.setattr(sqlite3, "connect", connect)
    table, shares = open_table(tmp_path / "store.db")
    table.put(key("a"), b"1")
    connections[0].execute(f"PRAGMA {pragma}")  # the smallest page count that is possible is what there is
    with pytest.raises(StoreError, match=r"attempt to write a readonly database|database or disk is full"):
        table.put(key("b"), bytes(100_000))
    assert table.get(key("a")) == b"1"
    assert table.get(key("b")) is None
    assert [record.id for record in table.keys("response")] == ["a"]
    assert shares.total.num_records == 1


def test_what_was_put_survives_a_kill(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from server.storage.record_table import RecordKey
from server.storage.record_table import OwnerQuotas
from server.storage.record_table import RECORD_SCHEMA, RecordTable
from server.storage.database import Database
table = RecordTable(Database(Path(sys.argv[1]), RECORD_SCHEMA), OwnerQuotas(100, 1 << 20))
for number in range(50):
    table.put(RecordKey("response", "", str(number)), b"value %d" % number)
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = tmp_path / "store"
    ended = subprocess.run([sys.executable, "-c", program, str(path)], env={**os.environ}, check=False)
    assert ended.returncode == -signal.SIGKILL
    table, shares = open_table(path)
    assert shares.total.num_records == 50
    assert table.get(key("49")) == b"value 49"
    table.database.close()


def test_only_one_process_has_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.storage.database._LOCK_TIMEOUT_S", 0.0)
    table, _ = open_table(tmp_path / "store")
    with pytest.raises(StoreError, match="another process uses it"):
        open_table(tmp_path / "store")
    table.database.close()
    open_table(tmp_path / "store")[0].database.close()


def _foreign(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE other (x)")
    database.close()


def _newer(path: Path) -> None:
    open_table(path)[0].database.close()
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    database.close()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: path.write_bytes(b"no database at all" * 100), "file is not a database"),
        (_foreign, "a database of another program"),
        (_newer, "this Eagre knows version"),
        (lambda path: path.symlink_to(path.parent / "missing" / "store"), "No such file or directory"),
    ],
)
def test_an_unusable_file_is_named_with_the_reason(tmp_path: Path, make, reason: str) -> None:
    path = tmp_path / "store"
    make(path)
    with pytest.raises(StoreError, match=reason) as raised:
        open_table(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_file_that_was_deleted_or_replaced_is_an_error(tmp_path: Path, is_replaced: bool) -> None:
    """The system would let the table write to it, and all that is written would be lost."""
    path, moved = tmp_path / "store.db", tmp_path / "moved.db"
    table, _ = open_table(path)
    table.put(key("a"), b"1")
    path.rename(moved)
    if is_replaced:
        path.write_bytes(b"")
    said = "its file was replaced" if is_replaced else "No such"
    for call in (
        lambda: table.put(key("b"), b"2"),
        lambda: table.get(key("a")),
        table.check,
        table.database.check_file,
    ):
        with pytest.raises(StoreError, match=f"cannot be used: {said}"):
            call()
    moved.replace(path)
    table.check()
    assert table.get(key("a")) == b"1"
    assert table.get(key("b")) is None
    table.database.close()
