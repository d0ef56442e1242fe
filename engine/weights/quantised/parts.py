"""The tensors that a checkpoint stores for one quantised matrix."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from engine.interface.errors import ModelError
from engine.weights.formats.file_array import FileArray
from engine.weights.formats.safetensors_files import PACKED_TYPES, STORED_TYPES, SafetensorsFiles

Types = Mapping[str, np.dtype[Any]]

FLOATS: Types = STORED_TYPES
WORDS: Types = MappingProxyType({"I32": PACKED_TYPES["I32"]})
BYTES: Types = MappingProxyType({"I8": PACKED_TYPES["I8"]})
FLOAT8: Types = MappingProxyType({"F8_E4M3": PACKED_TYPES["F8_E4M3"]})
SHAPES: Types = MappingProxyType({"I64": PACKED_TYPES["I64"], "I32": PACKED_TYPES["I32"]})


class Part:
    """A stored tensor, whose numbers stay in memory from the first use until they are forgotten."""

    def __init__(self, stored: FileArray) -> None:
        self.shape, self.ndim, self.size, self.nbytes = stored.shape, stored.ndim, stored.size, stored.nbytes
        self.stored = stored
        self._array: np.ndarray | None = None

    @property
    def array(self) -> np.ndarray:
        """Raises ModelError if the file cannot be read."""
        array = self._array
        if array is None:
            self._array = array = self.stored.read()
        return array

    def forget(self) -> None:
        self._array = None


class Parts:
    """The tensors of one module, by the last part of their names."""

    def __init__(self, files: SafetensorsFiles, module: str) -> None:
        self.module = module
        self._files = files
        self._read: dict[str, Part] = {}

    def find(self, part: str, types: Types) -> Part | None:
        """A tensor, or None where there is none; raises ModelError if its type is not supported."""
        stored = self._files.array(f"{self.module}.{part}", types)
        if stored is None:
            return None
        self._read[part] = data = Part(stored)
        return data

    def get(self, part: str, types: Types) -> Part:
        """A tensor; raises ModelError if it is missing, or its type is not supported."""
        data = self.find(part, types)
        if data is None:
            raise ModelError(f"{self.module} lacks the tensor '{self.module}.{part}'")
        return data

    def kind_of(self, part: str) -> str | None:
        """The stored type of a tensor, by the name of safetensors; None where there is none."""
        return self._files.kind_of(f"{self.module}.{part}")

    def matrix(self, part: str, types: Types) -> Part:
        """As `get`; also raises ModelError if it is no matrix."""
        data = self.get(part, types)
        if data.ndim != 2:
            raise ModelError(f"{self.module}.{part} has shape {data.shape}; it must be a matrix")
        return data

    def check(self, part: str, *expected: tuple[int, ...]) -> None:
        """Raises ModelError if a tensor that was read has none of the expected shapes."""
        shape = self._read[part].shape
        if shape not in expected:
            listed = " or ".join(map(str, expected))
            raise ModelError(f"{self.module}.{part} has shape {shape}, expected {listed}")

    @property
    def num_bytes(self) -> int:
        return sum(data.nbytes for data in self._read.values())

    def forget(self) -> None:
        """Returns the memory of all tensors that were read; a later use reads them again."""
        for data in self._read.values():
            data.forget()


def groups_of(num_inputs: int, group_size: int) -> np.ndarray:
    """int[num_inputs]: the group of each input, of `group_size` neighbours; -1: all are in one."""
    groups: np.ndarray = np.arange(num_inputs) // (num_inputs if group_size == -1 else group_size)
    return groups


# Of the eight nibbles of a word of AWQ, from the lowest on: which of eight neighbouring outputs each one belongs to
# (Lin et al., "AWQ", 2023, as the AutoAWQ project packs them).
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def unpacked(words: np.ndarray, bits: int) -> np.ndarray:
    """uint8[..., numbers] of `bits` bits (4 or 8) from int32[..., words], whose lowest bits hold the first number."""
    numbers = np.ascontiguousarray(words, "<i4").view(np.uint8)
    if bits == 8:
        return numbers
    nibbles = np.empty((*numbers.shape, 2), np.uint8)
    np.bitwise_and(numbers, 15, out=nibbles[..., 0])
    np.right_shift(numbers, 4, out=nibbles[..., 1])
    return nibbles.reshape(*numbers.shape[:-1], -1)


def unpacked_awq(words: np.ndarray) -> np.ndarray:
    """uint8[rows, outputs] of int32[rows, outputs / 8] in AWQ's order."""
    in_words = unpacked(words, 4).reshape(words.shape[0], -1, 8)
    numbers = np.empty_like(in_words)
    numbers[..., AWQ_ORDER] = in_words
    return numbers.reshape(words.shape[0], -1)
