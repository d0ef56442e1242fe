"""Each line of a batch has one answer, whatever happens, and a batch has its files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from server.storage import batch_table
from server.storage.batch_table import (
    BATCH_SCHEMA,
    BatchLine,
    BatchTable,
    DuplicateId,
    StoredBatch,
    TokenCounts,
    TooManyOpen,
)
from server.storage.database import Database
from server.storage.file_table import FILE_SCHEMA, FileBytes, FilesFull, FileTable

FIELDS = {"endpoint": "/v1/completions", "input_file_id": "in", "output_lifetime": 3600}


def open_tables(path: Path | None = None) -> tuple[BatchTable, FileTable]:
    database = Database(path, (*FILE_SCHEMA, *BATCH_SCHEMA))
    files = FileTable(database, FileBytes(1 << 20))
    return BatchTable(database, files), files


def add_input(files: FileTable, name: str = "in", owner: str = "ann") -> int:
    number = files.create(owner, name, 1, is_shared=False)
    files.append(number, owner, 0, b"the input", is_shared=False)
    files.finish(number, name, "batch", None)
    return number


def add_batch(batches: BatchTable, files: FileTable, num_lines: int = 3, name: str = "b1") -> StoredBatch:
    batch = batches.create("ann", name, 10, 99, add_input(files, f"in-{name}"), FIELDS, 5)
    batches.add_lines(
        batch.number, [BatchLine(at, at, 1, 0, f"id {at}") for at in range(1, num_lines + 1)], is_shared=False
    )
    return batches.change(batch.number, "in_progress", {"model": "fake"})


def content(files: FileTable, file_id: object) -> bytes:
    file = files.get("ann", str(file_id))
    assert file is not None
    return files.read_pieces(file.number, -1, 1 << 20)[0]


def test_a_line_is_answered_once() -> None:
    batches, files = open_tables()
    number = add_batch(batches, files).number
    assert batches.record(number, 2, b"two\n", TokenCounts(5, 1, 7, 2), has_failed=False)
    assert not batches.record(number, 2, b"again\n", TokenCounts(5, 1, 7, 2), has_failed=False)
    assert batches.record(number, 1, b"one\n", TokenCounts(1, 0, 1, 0), has_failed=False)
    assert batches.record(number, 3, b"error\n", TokenCounts(), has_failed=True)
    assert list(batches.take_lines(number, 0, 10)) == []
    before = batches.find(number)
    assert (before.total, before.completed, before.failed) == (3, 2, 1)
    assert before.usage == TokenCounts(6, 1, 8, 2)
    assert "output_file_id" not in before.fields
    assert files.page("ann", purpose="batch_output", after=None, limit=9, is_ascending=True) == []
    ended = batches.end(number, "completed", {"completed_at": 50}, 50)
    assert (ended.status, ended.is_open, ended.fields["completed_at"]) == ("completed", False, 50)
    assert content(files, ended.fields["output_file_id"]) == b"one\ntwo\n", "in the order of the input"
    assert content(files, ended.fields["error_file_id"]) == b"error\n"
    output = files.get("ann", ended.fields["output_file_id"])
    assert output is not None
    assert (output.name, output.purpose, output.expires) == ("b1_output.jsonl", "batch_output", 50 + 3600)
    assert batches.end(number, "cancelled", {}, 60).status == "completed"


def test_lines_are_taken_in_order_and_their_attempts_counted() -> None:
    batches, files = open_tables()
    number = add_batch(batches, files, 5).number
    batches.count_attempt(number, 2)
    batches.count_attempt(number, 3)
    batches.count_attempt(number, 3, -1)
    taken = batches.take_lines(number, 1, 3)
    assert [(line.number, line.attempts, line.custom_id) for line in taken] == [
        (2, 1, "id 2"), (3, 0, "id 3"), (4, 0, "id 4"),
    ]  # fmt: skip


def test_what_is_left_of_a_batch_fails_with_it() -> None:
    batches, files = open_tables()
    number = add_batch(batches, files, 5).number
    batches.record(number, 4, b"four\n", TokenCounts(), has_failed=False)
    while batches.fail_lines(number, 3, lambda custom_id: f"{custom_id} failed\n".encode()):
        pass
    ended = batches.end(number, "expired", {}, 60)
    assert (ended.total, ended.completed, ended.failed) == (5, 1, 4)
    assert content(files, ended.fields["error_file_id"]).count(b"failed") == 4


def test_lines_need_room() -> None:
    batches, files = open_tables()
    batch = batches.create("ann", "b", 10, 99, add_input(files), FIELDS, 5)
    held = files.num_bytes.total
    lines = [BatchLine(at, at, 1, 0, f"{at:0512}") for at in range(1, 1001)]
    with pytest.raises(FilesFull):
        batches.add_lines(batch.number, lines, is_shared=False)
    with pytest.raises(FilesFull):
        batches.add_lines(batch.number, lines[:500], is_shared=True)
    assert (files.num_bytes.total, batches.counts()) == (held, (1, 0))
    batches.add_lines(batch.number, lines[:500], is_shared=False)
    assert batches.counts() == (1, 500)


def test_a_custom_id_is_there_once_in_a_batch() -> None:
    batches, files = open_tables()
    first, second = add_batch(batches, files), add_batch(batches, files, name="b2")
    with pytest.raises(DuplicateId) as raised:
        batches.add_lines(
            second.number, [BatchLine(9, 0, 1, 0, "new"), BatchLine(10, 0, 1, 0, "id 2")], is_shared=False
        )
    assert (raised.value.line, raised.value.custom_id) == (10, "id 2")
    assert batches.find(second.number).total == 3
    assert not batches.drop_lines(first.number), "it is computed already"
    batches.change(first.number, "validating", {})
    assert batches.drop_lines(first.number)
    assert (batches.find(first.number).total, batches.counts()) == (0, (2, 3))


def test_a_deleted_input_is_there_until_its_batch_has_ended() -> None:
    batches, files = open_tables()
    batch = add_batch(batches, files)
    held = files.num_bytes.total
    assert not batches.delete_file("bob", "in-b1")
    assert batches.delete_file("ann", "in-b1")
    assert not batches.delete_file("ann", "in-b1")
    assert files.get("ann", "in-b1") is None
    assert files.read_range(batch.input, 0, 9) == b"the input"
    assert files.num_bytes.total == held
    batches.end(batch.number, "cancelled", {}, 60)
    assert files.read_range(batch.input, 0, 9) == b""
    assert files.num_bytes.total == 0


def test_a_status_changes_only_from_those_that_are_named() -> None:
    batches, files = open_tables()
    number = add_batch(batches, files).number
    assert batches.change(number, "cancelling", {"a": 1}, only_if=("validating",)).status == "in_progress"
    changed = batches.change(number, "cancelling", {"a": 1}, only_if=("in_progress",))
    assert (changed.status, changed.fields["a"], changed.fields["endpoint"]) == ("cancelling", 1, "/v1/completions")


def test_open_batches_are_few_and_ended_ones_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_table, "MAX_ENDED", 2)
    batches, files = open_tables()
    file = add_input(files)
    for at in range(4):
        batches.end(batches.create("ann", f"b{at}", 1, 2, file, FIELDS, 1).number, "failed", {}, 60)
    assert [batch.id for batch in batches.page("ann", after=None, limit=9)] == ["b3", "b2"]
    batches.create("ann", "open", 1, 2, file, FIELDS, 1)
    with pytest.raises(TooManyOpen):
        batches.create("ann", "one more", 1, 2, file, FIELDS, 1)
    batches.create("bob", "another's", 1, 2, file, FIELDS, 1)
    assert batches.get("ann", "another's") is None
    assert [batch.id for batch in batches.open_batches()] == ["open", "another's"]


def test_answers_survive_a_kill_and_counts_are_right_after_it(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from server.storage.batch_table import TokenCounts
from tests.server.storage.test_batch_table import add_batch, open_tables
batches, files = open_tables(Path(sys.argv[1]))
number = add_batch(batches, files, 20).number
for line in range(1, 12):
    batches.record(number, line, b"answer %d\\n" % line, TokenCounts(1, 0, 1, 0), has_failed=False)
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = tmp_path / "store"
    ended = subprocess.run([sys.executable, "-c", program, str(path)], env={**os.environ}, check=False)
    assert ended.returncode == -signal.SIGKILL
    batches, files = open_tables(path)
    (batch,) = batches.open_batches()
    assert (batch.total, batch.completed, batch.usage.output_tokens) == (20, 11, 11)
    left = batches.take_lines(batch.number, 0, 100)
    assert [line.number for line in left] == list(range(12, 21))
    for line in left:
        batches.record(batch.number, line.number, b"answer %d\n" % line.number, TokenCounts(), has_failed=False)
    file_id = batches.end(batch.number, "completed", {}, 60).fields["output_file_id"]
    assert content(files, file_id) == b"".join(b"answer %d\n" % line for line in range(1, 21))
    batches._database.close()
