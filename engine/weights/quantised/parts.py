"""The tensors that a checkpoint stores in place of one matrix."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from engine.interface.errors import ModelError
from engine.weights.formats.mapped_file import forget
from engine.weights.formats.safetensors_files import PACKED_TYPES, STORED_TYPES, SafetensorsFiles

Types = Mapping[str, np.dtype[Any]]

FLOATS: Types = STORED_TYPES
WORDS: Types = MappingProxyType({"I32": PACKED_TYPES["I32"]})
BYTES: Types = MappingProxyType({"I8": PACKED_TYPES["I8"]})
FLOAT8: Types = MappingProxyType({"F8_E4M3": PACKED_TYPES["F8_E4M3"]})
SHAPES: Types = MappingProxyType({"I64": PACKED_TYPES["I64"], "I32": PACKED_TYPES["I32"]})


class Parts:
    """The tensors of one module, by the last part of their names. Those that were asked for count as read."""

    def __init__(self, files: SafetensorsFiles, module: str) -> None:
        self.module = module
        self._files = files
        self._read: dict[str, np.ndarray] = {}

    def find(self, part: str, types: Types) -> np.ndarray | None:
        """A view of a tensor, or None where there is none.

        Raises:
            ModelError: it is of a type that is not read.
        """
        data = self._files.array(f"{self.module}.{part}", types)
        if data is not None:
            self._read[part] = data
        return data

    def get(self, part: str, types: Types) -> np.ndarray:
        """
        Raises:
            ModelError: there is no such tensor, or it is of a type that is not read.
        """
        data = self.find(part, types)
        if data is None:
            raise ModelError(f"{self.module} lacks the tensor '{self.module}.{part}'")
        return data

    def kind_of(self, part: str) -> str | None:
        """How a tensor is stored, by the name of safetensors; None where there is none."""
        return self._files.kind_of(f"{self.module}.{part}")

    def matrix(self, part: str, types: Types) -> np.ndarray:
        """
        Raises:
            ModelError: as `get`, or it is no matrix.
        """
        data = self.get(part, types)
        if data.ndim != 2:
            raise ModelError(f"{self.module}.{part} has shape {data.shape}; it must be a matrix")
        return data

    def check(self, part: str, *expected: tuple[int, ...]) -> None:
        """
        Raises:
            ModelError: a tensor that was read has none of the shapes that are expected.
        """
        shape = self._read[part].shape
        if shape not in expected:
            listed = " or ".join(map(str, expected))
            raise ModelError(f"{self.module}.{part} has shape {shape}, expected {listed}")

    @property
    def num_bytes(self) -> int:
        return sum(data.nbytes for data in self._read.values())

    def forget(self) -> None:
        """Gives back the pages of all tensors that were asked for."""
        for data in self._read.values():
            forget(data)


def groups_of(num_inputs: int, group_size: int) -> np.ndarray:
    """int[num_inputs]: the group of each input, of so many neighbours; -1: all are in one."""
    groups: np.ndarray = np.arange(num_inputs) // (num_inputs if group_size == -1 else group_size)
    return groups
