"""The metadata and the tensors of a GGUF file. Source of the format: the GGUF specification of the ggml project."""

from __future__ import annotations

import math
import re
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from gguf import GGMLQuantizationType, LlamaFileType, ReaderTensor
from gguf.quants import dequantize

from engine.interface.errors import ModelError
from engine.weights.encodings import EncodedRows, Encoding
from engine.weights.formats.file_array import FileArray
from engine.weights.formats.gguf_fields import GGUFFields
from engine.weights.formats.gguf_file import GGUFFile
from engine.weights.formats.gguf_shards import tensors_of_shards
from engine.weights.packing import Format

_FIELD = re.compile(r"field (?P<key>\S+) (?P<layer>\d+)")
_ENCODINGS = frozenset(map(int, Encoding)) & frozenset(map(int, GGMLQuantizationType))


@dataclass(frozen=True)
class GGUFTensor:
    """A tensor of a file, read lazily."""

    stored: ReaderTensor
    index: int | None = None  # of the expert, where this is one of a tensor of all experts

    @property
    def name(self) -> str:
        return self.stored.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Row-major: the reverse of the order in which GGUF states dimensions."""
        shape = tuple(reversed(self.stored.shape.tolist()))
        return shape if self.index is None else shape[1:]

    @property
    def num_bytes(self) -> int:
        return int(self.stored.n_bytes if self.index is None else self._data.nbytes)

    @property
    def format(self) -> Format:
        encoding = self._encoding
        return Format.BFLOAT16 if encoding is None else encoding.format

    def float32(self) -> np.ndarray:
        """Raises ModelError if the format cannot be read."""
        kind = self.stored.tensor_type
        try:
            array = dequantize(self._data.read(), kind)
        except NotImplementedError as error:
            raise ModelError(f"{self.stored.name}: the format {kind.name} cannot be read") from error
        return array.astype(np.float32, copy=False).reshape(self.shape)

    def encoded(self) -> EncodedRows | None:
        encoding = self._encoding
        if encoding is None or len(self.shape) != 2:
            return None
        return EncodedRows(encoding, *self.shape, read=self._data.read_bytes)

    def expert(self, index: int) -> GGUFTensor:
        return GGUFTensor(self.stored, index)

    @property
    def _encoding(self) -> Encoding | None:
        """None of formats that can be read as floats only."""
        kind = self.stored.tensor_type
        return Encoding(kind) if kind in _ENCODINGS else None

    @property
    def _data(self) -> FileArray:
        data = cast(FileArray, self.stored.data)
        return data if self.index is None else data[self.index]


@dataclass(frozen=True)
class FieldTensor:
    """A number that a file states in a field, as a vector of one."""

    name: str
    value: float
    shape: tuple[int, ...] = (1,)
    num_bytes: int = 4
    format: Format = Format.BFLOAT16

    def float32(self) -> np.ndarray:
        return np.array([self.value], np.float32)

    def encoded(self) -> EncodedRows | None:
        return None

    def expert(self, index: int) -> FieldTensor:
        return self


def field_name(key: str) -> str:
    """A name of a tensor in each layer for the numbers that a field of the file lists, given by its whole key."""
    return f"field {key} {{layer}}"


class GGUFTensors:
    """An open GGUF file, or all its shards: the fields of its architecture, and its tensors, read lazily."""

    format = "gguf"

    def __init__(self, path: Path) -> None:
        """Opens a file, given by its path or that of its first shard; raises ModelError."""
        try:
            file = GGUFFile(path)
        except OSError as error:
            raise ModelError(str(error)) from error
        self._file = file
        self._tensors = tensors_of_shards(path, file)
        architecture = file.value("general.architecture")
        if not isinstance(architecture, str):
            raise ModelError("the file has no field 'general.architecture' of one value")
        self.architecture = architecture
        self.fields = GGUFFields(file, architecture)

    @property
    def names(self) -> Set[str]:
        return self._tensors.keys()

    @property
    def quantization(self) -> str | None:
        """The file's quantisation, such as "Q4_K_M"; None where it is not stated or unknown."""
        kind = self._file.value("general.file_type")
        try:
            return LlamaFileType(int(str(kind))).name.removeprefix("ALL_").removeprefix("MOSTLY_")
        except ValueError:
            return None

    def value(self, key: str) -> Any:
        """The value of a field, by its whole key; None where it is absent."""
        return self._file.value(key)

    def tensor(self, name: str) -> GGUFTensor | FieldTensor | None:
        """As `TensorFile.tensor`; a name that `field_name` has made stands for a number of a field."""
        of_field = _FIELD.fullmatch(name)
        if of_field is not None:
            return self._number(of_field["key"], int(of_field["layer"]))
        stored = self._tensors.get(name)
        return None if stored is None else GGUFTensor(stored)

    def _number(self, key: str, layer: int) -> FieldTensor:
        """A layer's number of a field that lists one for each, or has one for all; raises ModelError."""
        value = self._file.value(key)
        if value is None:
            raise ModelError(f"the file has no field {key!r}")
        numbers: list[Any] = value if isinstance(value, list) else [value] * (layer + 1)
        if layer >= len(numbers) or not isinstance(numbers[layer], int | float) or not math.isfinite(numbers[layer]):
            raise ModelError(f"the field {key!r} must list a number for each layer")
        return FieldTensor(f"{key} of layer {layer}", float(numbers[layer]))
