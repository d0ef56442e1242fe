"""Files come and go in pieces, belong to their owners, and take no more room than there is."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from server.storage.database import Database
from server.storage.file_table import FILE_OVERHEAD_BYTES, FILE_SCHEMA, FileBytes, FilesFull, FileTable

LIMIT = 1 << 20


def open_files(path: Path | None = None, limit: int = LIMIT) -> FileTable:
    return FileTable(Database(path, FILE_SCHEMA), FileBytes(limit))


def add(files: FileTable, name: str, content: bytes = b"", owner: str = "ann", piece: int = 10) -> int:
    number = files.create(owner, name, 100, is_shared=False)
    for start in range(0, len(content), piece):
        files.append(number, owner, start, content[start : start + piece], is_shared=False)
    files.finish(number, name + ".jsonl", "batch", 500)
    return number


def names(files: FileTable, owner: str = "ann", **query: object) -> list[str]:
    asked = {"purpose": None, "after": None, "limit": 10, "is_ascending": True, **query}
    return [file.id for file in files.page(owner, **asked)]  # type: ignore[arg-type]


def test_any_part_of_a_file_is_read() -> None:
    files, numbers = open_files(), random.Random(1)
    content = numbers.randbytes(105)
    number = add(files, "a", content)
    for start in range(len(content) + 2):
        for size in (1, 9, 10, 11, 40, 200):
            assert files.read_range(number, start, size) == content[start : start + size]
    read, place = b"", -1
    while (piece := files.read_pieces(number, place, 25))[0]:
        read, place = read + piece[0], piece[1]
    assert read == content


def test_a_file_is_its_owners() -> None:
    files = open_files()
    add(files, "a")
    assert files.get("ann", "a") is not None
    assert files.get("bob", "a") is None
    assert not files.mark_deleted("bob", "a")
    assert names(files, "bob") == []


def test_pages_of_the_list() -> None:
    files = open_files()
    numbers = {name: add(files, name) for name in "abcd"}
    arriving = files.create("ann", "e", 100, is_shared=False)
    assert names(files) == ["a", "b", "c", "d"]
    assert names(files, is_ascending=False, limit=2) == ["d", "c"]
    assert names(files, after=numbers["b"]) == ["c", "d"]
    assert names(files, after=numbers["b"], is_ascending=False) == ["a"]
    assert names(files, purpose="batch_output") == []
    files.discard(arriving)
    files.discard(arriving)


def test_room_is_counted_and_given_back() -> None:
    files = open_files()
    number = add(files, "a", bytes(1000))
    assert files.num_bytes.total == 1000 + FILE_OVERHEAD_BYTES
    with pytest.raises(FilesFull, match="the limit is 1048576"):
        files.append(number, "ann", 1000, bytes(LIMIT), is_shared=False)
    assert files.num_bytes.total == 1000 + FILE_OVERHEAD_BYTES
    files.discard(number)
    assert files.num_bytes.total == 0


def test_a_reader_of_a_deleted_file_never_gets_the_bytes_of_the_next() -> None:
    files = open_files()
    number = add(files, "a", b"0123456789" * 3)
    _, place = files.read_pieces(number, -1, 10)
    files.discard(number)
    add(files, "b", b"the secret of another owner", owner="bob")
    assert files.read_pieces(number, place, 100)[0] == b""
    assert files.read_range(number, 0, 100) == b""


def test_empty_files_need_room() -> None:
    files = open_files(limit=3 * FILE_OVERHEAD_BYTES)
    for name in "abc":
        add(files, name)
    with pytest.raises(FilesFull):
        add(files, "d")
    assert names(files) == ["a", "b", "c"]
    files = open_files(limit=3 * FILE_OVERHEAD_BYTES)
    files.create("ann", "a", 100, is_shared=True)
    with pytest.raises(FilesFull):
        files.create("ann", "b", 100, is_shared=True)


def test_one_owner_of_several_may_have_half_of_what_the_others_leave() -> None:
    held = FileBytes(100)
    held.add("ann", 40)
    held.check("ann", 10, is_shared=True)
    with pytest.raises(FilesFull):
        held.check("ann", 11, is_shared=True)
    held.check("ann", 60, is_shared=False)
    held.check("bob", 30, is_shared=True)
    with pytest.raises(FilesFull):
        held.check("bob", 31, is_shared=True)


def test_what_had_not_arrived_is_dropped_at_the_next_start(tmp_path: Path) -> None:
    files = open_files(tmp_path / "store")
    add(files, "a", b"whole")
    number = files.create("ann", "b", 100, is_shared=False)
    files.append(number, "ann", 0, b"half", is_shared=False)
    files._database.close()
    again = open_files(tmp_path / "store")
    assert names(again) == ["a"]
    assert again.num_bytes.total == len(b"whole") + FILE_OVERHEAD_BYTES
    assert again.read_range(number, 0, 10) == b""
    again._database.close()


def test_a_failed_transaction_leaves_the_counts_right() -> None:
    files = open_files()
    number = add(files, "a", b"0123456789")
    before = files.num_bytes.total
    with pytest.raises(Exception, match="UNIQUE"):
        files.append(number, "ann", 0, b"again", is_shared=False)
    assert files.num_bytes.total == before
    assert files.read_range(number, 0, 100) == b"0123456789"


def test_files_expire() -> None:
    files = open_files()
    add(files, "a", b"0123456789")
    files.mark_expired(499)
    assert names(files) == ["a"]
    files.mark_expired(500)
    assert names(files) == []
