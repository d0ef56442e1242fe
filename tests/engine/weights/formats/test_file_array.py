"""Arrays in files: what is read of them, and what happens if the file is not what it was."""

import os
from pathlib import Path

import numpy as np
import pytest

from engine.interface.errors import ModelError
from engine.weights.formats.file_array import FileArray, ModelFile

NUMBERS = np.arange(24, dtype=np.int32).reshape(2, 4, 3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "numbers"
    path.write_bytes(b"head" + NUMBERS.tobytes())
    return path


def array_of(path: Path) -> FileArray:
    return FileArray(ModelFile(path), 4, NUMBERS.dtype, NUMBERS.shape)


def test_it_reads_what_was_written(path: Path) -> None:
    array = array_of(path)
    assert (array.ndim, array.size, array.nbytes) == (3, 24, 96)
    np.testing.assert_array_equal(array.read(), NUMBERS)
    np.testing.assert_array_equal(array[1].read(), NUMBERS[1])
    np.testing.assert_array_equal(array.reshape((6, 4)).read(), NUMBERS.reshape(6, 4))
    np.testing.assert_array_equal(array[1].read_bytes(1, 3), NUMBERS[1, 1:3].view(np.uint8))
    assert array.read_bytes(1, 1).shape == (0, 48)
    with pytest.raises(ValueError, match="an array of 24 numbers has no shape"):
        array.reshape((5, 5))


def test_a_file_that_was_cut_is_named(path: Path) -> None:
    array = array_of(path)
    os.truncate(path, 50)
    with pytest.raises(ModelError, match="numbers was cut short while it was read"):
        array.read()


def test_a_file_that_was_written_to_is_named(path: Path) -> None:
    array = array_of(path)
    with path.open("r+b") as file:
        file.write(b"tail")
    os.utime(path, ns=(0, 1))  # the clock of a file system may be too coarse for this test
    with pytest.raises(ModelError, match="numbers was changed while it was read"):
        array.read()


def test_a_file_that_another_replaces_is_read_on(path: Path) -> None:
    array = array_of(path)
    path.with_name("other").write_bytes(b"other")
    path.with_name("other").replace(path)
    np.testing.assert_array_equal(array.read(), NUMBERS)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        ModelFile(tmp_path)
