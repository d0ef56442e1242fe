"""Arrays in files, read by `pread` into memory of this process.

A file that is mapped into memory and then cut ends the whole process with SIGBUS at the next access, with all models
that it serves. A read comes back short instead, which is an error of this one load.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.interface.errors import ModelError
from engine.interface.regular_file import check_regular


class ModelFile:
    """An open model file, which notices that it is cut or written to while it is read."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if the file cannot be opened or is not a regular file."""
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        check_regular(self._descriptor, path)
        self.size, self._written = self._state()

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def read(self, start: int, stop: int) -> np.ndarray:
        """uint8[stop - start]; raises ModelError if the file is cut, was changed, or cannot be read."""
        data = np.empty(stop - start, np.uint8)
        view, done = data.data, 0
        try:
            while done < len(data):
                count = os.preadv(self._descriptor, [view[done:]], start + done)
                if count == 0:
                    raise ModelError(f"{self.path} was cut short while it was read")
                done += count
            is_changed = self._state() != (self.size, self._written)
        except OSError as error:
            raise ModelError(f"{self.path} cannot be read: {error.strerror}") from error
        if is_changed:
            raise ModelError(f"{self.path} was changed while it was read")
        return data

    def _state(self) -> tuple[int, int]:
        """The size, and the time of the last change."""
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns


@dataclass(frozen=True, eq=False)
class FileArray:
    """An array of a file, row-major, which is read when it is needed."""

    file: ModelFile
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def reshape(self, shape: tuple[int, ...]) -> FileArray:
        """The same numbers in another shape of the same size; raises ValueError if it is of another."""
        if math.prod(shape) != self.size:
            raise ValueError(f"an array of {self.size} numbers has no shape {shape}")
        return FileArray(self.file, self.offset, self.dtype, shape)

    def __getitem__(self, index: int) -> FileArray:
        shape = self.shape[1:]
        return FileArray(self.file, self.offset + index * math.prod(shape) * self.dtype.itemsize, self.dtype, shape)

    def read(self) -> np.ndarray:
        """A copy of all numbers; raises ModelError as `ModelFile.read` does."""
        data = self.file.read(self.offset, self.offset + self.nbytes)
        return data.view(self.dtype).reshape(self.shape)

    def read_bytes(self, start: int, stop: int) -> np.ndarray:
        """uint8[stop - start, bytes of a row] of the rows from start to stop; raises ModelError as `read` does."""
        row = math.prod(self.shape[1:]) * self.dtype.itemsize
        return self.file.read(self.offset + start * row, self.offset + stop * row).reshape(stop - start, row)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return self.read() if dtype is None else self.read().astype(dtype, copy=False)
