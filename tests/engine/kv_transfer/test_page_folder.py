"""Pages in files: what is damaged is noticed, and the folder keeps its limit by letting the oldest go."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kv_transfer.disk import DiskConnector
from engine.kv_transfer.page_file import DamagedPage, read_page_file, write_page_file
from engine.kv_transfer.page_folder import PageFolder

PAGE_BYTES = 65536 - 80  # with its header, a page's file has 64 KiB
FILE_BYTES = 65536
KEYS = ("a" * 32, "b" * 32)


def name_of(index):
    return bytes([index]) * 32


def content_of(index):
    return np.random.default_rng(index).integers(0, 256, PAGE_BYTES, np.uint8)


@settings(max_examples=40)
@given(st.integers(0, 8 * (80 + 48) - 1))
def test_a_flipped_bit_is_noticed_wherever_it_is(tmp_path_factory, bit):
    path = tmp_path_factory.mktemp("page") / "a.page"
    pieces = [np.arange(4, dtype=np.float32).reshape(2, 2), np.arange(8, dtype=np.int32)]
    content = np.concatenate([piece.reshape(-1).view(np.uint8) for piece in pieces])
    assert write_page_file(path, name_of(1), pieces, attempt="1") == path.stat().st_size
    assert (read_page_file(path, name_of(1), 48) == content).all()
    damaged = bytearray(path.read_bytes())
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    with pytest.raises(DamagedPage, match=r"a\.page"):
        read_page_file(path, name_of(1), 48)


@pytest.mark.parametrize("change", [lambda content: content[:-1], lambda content: content + b"x", lambda content: b""])
def test_a_torn_file_is_noticed(tmp_path, change):
    path = tmp_path / "a.page"
    write_page_file(path, name_of(1), [np.arange(8)], attempt="1")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DamagedPage, match="bytes in the place of"):
        read_page_file(path, name_of(1), 64)


def test_a_page_under_another_name_is_noticed(tmp_path):
    write_page_file(tmp_path / "a.page", name_of(1), [np.arange(8)], attempt="1")
    with pytest.raises(DamagedPage, match="not the page that its name says"):
        read_page_file(tmp_path / "a.page", name_of(2), 64)


actions = st.lists(
    st.tuples(
        st.sampled_from(["store", "store", "store", "touch", "load", "forget"]), st.integers(0, 1), st.integers(0, 29)
    ),
    max_size=60,
)


@settings(max_examples=40)
@given(actions, st.integers(16, 24))
def test_the_folder_behaves_as_a_list_in_order_of_use(tmp_path_factory, script, max_pages):
    """Two servers, each with its own key, beside a list of (key, name), the least recently used first."""
    path = tmp_path_factory.mktemp("pages")
    now = [1_000_000.0]
    disks = [
        DiskConnector(PageFolder(path, max_pages * FILE_BYTES), key, PAGE_BYTES, clock=lambda: now[0]) for key in KEYS
    ]
    model: list[tuple[int, int]] = []
    for action, server, index in script:
        now[0] += 11.0  # so that each looks for what the other has removed
        disk, entry, name = disks[server], (server, index), name_of(index)
        disk.refresh()
        if action == "store":
            assert disk.store(name, [content_of(index)])
            if entry not in model:
                model.append(entry)
                _set_time(path, entry, now[0])
        elif action == "touch" and entry in model:
            disk.touch([name])
            model.append(model.pop(model.index(entry)))
            _set_time(path, entry, now[0])
        elif action == "load":
            content = disk.load(name)
            assert (content is not None) == (entry in model and _path(path, entry).exists())
            assert content is None or (content == content_of(index)).all()
        elif action == "forget":
            disk.forget([name])
            model = [other for other in model if other != entry]
        there = [entry for entry in model if _path(path, entry).exists()]
        assert there == model[len(model) - len(there) :]  # only those used the longest ago have left
        model = there
        assert len(list(path.rglob("*.page"))) == len(model)
        # Each server alone stays within the limit; the other may write a sixteenth of it before either looks again.
        assert len(model) <= max_pages + 1


def _path(folder, entry):
    return folder / KEYS[entry[0]] / (name_of(entry[1]).hex() + ".page")


def _set_time(folder, entry, now):
    """In the place of the clock of the file system, so that no two uses come at the same time."""
    os.utime(_path(folder, entry), (now, now))


def test_one_server_never_exceeds_the_limit_and_foreign_files_stay(tmp_path):
    (tmp_path / "letter.txt").write_text("mine")
    (tmp_path / KEYS[0]).mkdir()
    (tmp_path / KEYS[0] / "notes.txt").write_text("mine too")
    disk = DiskConnector(PageFolder(tmp_path, 20 * FILE_BYTES), KEYS[0], PAGE_BYTES)
    for index in range(60):
        assert disk.store(name_of(index), [content_of(index)])
        assert sum(path.stat().st_size for path in tmp_path.rglob("*.page")) <= 20 * FILE_BYTES
    assert disk.load(name_of(59)) is not None
    assert disk.load(name_of(0)) is None
    assert (tmp_path / "letter.txt").read_text() == "mine"
    assert (tmp_path / KEYS[0] / "notes.txt").read_text() == "mine too"


def test_a_page_larger_than_the_limit_drives_out_no_others(tmp_path):
    assert DiskConnector(PageFolder(tmp_path, 1 << 20), KEYS[0], PAGE_BYTES).store(name_of(1), [content_of(1)])
    large = DiskConnector(PageFolder(tmp_path, 1 << 20), KEYS[1], 2 << 20)
    assert not large.store(name_of(2), [np.zeros(2 << 20, np.uint8)])
    assert _path(tmp_path, (0, 1)).exists()


def test_what_a_killed_server_left_unfinished_goes_after_an_hour(tmp_path):
    shelf = tmp_path / KEYS[0]
    shelf.mkdir()
    for name, age in ((".writing-1", 4000.0), (".writing-2", 0.0)):
        (shelf / name).write_bytes(b"half")
        now = os.stat(shelf / name).st_mtime
        os.utime(shelf / name, (now - age, now - age))
    DiskConnector(PageFolder(tmp_path, 1 << 20), KEYS[0], PAGE_BYTES)
    assert [path.name for path in shelf.iterdir()] == [".writing-2"]


def test_the_pages_of_another_server_are_found(tmp_path):
    now = [0.0]
    first, second = (
        DiskConnector(PageFolder(tmp_path, 1 << 20), KEYS[0], PAGE_BYTES, clock=lambda: now[0]) for _ in range(2)
    )
    assert first.store(name_of(1), [content_of(1)])
    second.refresh()
    assert not second.holds(name_of(1))  # it has looked a moment ago
    now[0] = 11.0
    second.refresh()
    assert second.holds(name_of(1))
    assert (second.load(name_of(1)) == content_of(1)).all()
    second.clear()
    assert first.load(name_of(1)) is None
    assert not first.holds(name_of(1))


def test_a_damaged_page_is_removed_and_said(tmp_path, caplog):
    disk = DiskConnector(PageFolder(tmp_path, 1 << 20), KEYS[0], PAGE_BYTES)
    assert disk.store(name_of(1), [content_of(1)])
    path = _path(tmp_path, (0, 1))
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    assert disk.load(name_of(1)) is None
    assert "is damaged and will be computed again" in caplog.text
    assert (disk.num_damaged, disk.holds(name_of(1)), path.exists()) == (1, False, False)
    assert disk.store(name_of(1), [content_of(1)])
    assert disk.load(name_of(1)) is not None


def test_a_full_disk_costs_one_line_and_is_tried_again(tmp_path, caplog, monkeypatch):
    now = [0.0]
    disk = DiskConnector(PageFolder(tmp_path, 1 << 20), KEYS[0], PAGE_BYTES, clock=lambda: now[0])
    written = []

    def write(descriptor, piece):
        written.append(len(piece))
        if len(written) > 1:
            raise OSError(28, "No space left on device")
        return real_write(descriptor, piece)

    real_write = os.write
    monkeypatch.setattr(os, "write", write)
    assert not disk.store(name_of(1), [content_of(1)])
    assert not disk.store(name_of(2), [content_of(2)])
    assert len(written) == 2  # the second page is not tried
    assert caplog.text.count("No space left on device") == 1
    assert list((tmp_path / KEYS[0]).iterdir()) == []
    monkeypatch.undo()
    now[0] = 61.0
    assert disk.store(name_of(1), [content_of(1)])


def test_a_folder_that_cannot_be_used_does_no_harm(tmp_path, caplog):
    (tmp_path / "file").write_text("no folder")
    disk = DiskConnector(PageFolder(tmp_path / "file", 1 << 20), KEYS[0], PAGE_BYTES)
    assert not disk.store(name_of(1), [content_of(1)])
    assert disk.load(name_of(1)) is None
    disk.touch([name_of(1)])
    disk.clear()
    disk.refresh()
    assert len(caplog.records) == 1
    assert "pages cannot be written in" in caplog.text
