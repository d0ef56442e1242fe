"""The tensors of a model folder: one safetensors file, or several that an index lists.

Source of the formats: the safetensors project for the files, Hugging Face transformers for the
index, whose `weight_map` says which file (shard) holds which tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from engine.border.errors import ModelError
from engine.weights.encodings import EncodedRows, Encoding
from engine.weights.formats.model_folder import ModelFolder
from engine.weights.packing import Format

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SUFFIX = ".safetensors"

# bfloat16 is numpy's by JAX's grace: importing JAX registers it, and safetensors asks numpy for it.
STORED_TYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(jnp.bfloat16)}
)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in its file: nothing is read until `float32` is called."""

    name: str
    shape: tuple[int, ...]  # row-major, as stored
    num_bytes: int
    encoding: Encoding
    _file: safe_open
    _index: int | None = None  # of the expert, where this is one of a tensor of all experts

    @property
    def format(self) -> Format:
        return self.encoding.format

    def encoded(self) -> EncodedRows | None:
        return None if len(self.shape) != 2 else EncodedRows(self.encoding, *self.shape, read=self._rows)

    def float32(self) -> np.ndarray:
        """The whole tensor, float32[shape]."""
        array: np.ndarray = (
            self._file.get_tensor(self.name)
            if self._index is None
            else self._file.get_slice(self.name)[self._index : self._index + 1][0]
        )
        return array.astype(np.float32, copy=False)

    def expert(self, index: int) -> StoredTensor:
        return StoredTensor(
            self.name, self.shape[1:], self.num_bytes // self.shape[0], self.encoding, self._file, index
        )

    def _rows(self, start: int, stop: int) -> np.ndarray:
        """uint8[stop - start, bytes of a row]."""
        stored = self._file.get_slice(self.name)
        rows: np.ndarray = (
            stored[start:stop] if self._index is None else stored[self._index : self._index + 1, start:stop][0]
        )
        return np.ascontiguousarray(rows).view(np.uint8)


class SafetensorsFiles:
    """All tensors of a model folder by name, opened and checked for completeness, not yet read."""

    format = "safetensors"

    def __init__(self, folder: ModelFolder) -> None:
        """Raises:
        ModelError: there are no safetensors files; one is missing, damaged or cut short; the
            index does not fit them, or names a file that is not in the folder.
        """
        self._folder = folder
        self._file_of: dict[str, safe_open] = {}
        single = folder.file(WEIGHTS)
        if single is not None:
            file = _open(single)
            self._file_of = dict.fromkeys(file.keys(), file)
            return
        index = folder.json(INDEX)
        if index is None:
            raise ModelError(f"{folder.path} has neither {WEIGHTS} nor {INDEX}; no other format is read")
        files: dict[str, tuple[safe_open, frozenset[str]]] = {}
        for tensor, shard in _weight_map(index.path, index.value("weight_map")).items():
            if shard not in files:
                file = _open(self._shard(index.path, shard))
                files[shard] = (file, frozenset(file.keys()))
            file, tensors = files[shard]
            if tensor not in tensors:
                raise ModelError(f"{folder.path / shard} has no tensor {tensor!r}, although {INDEX} says so")
            self._file_of[tensor] = file

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._file_of)

    def tensor(self, name: str) -> StoredTensor | None:
        """A tensor by its name, or None where there is none.

        Raises:
            ModelError: it is stored in a format that is not read.
        """
        file = self._file_of.get(name)
        if file is None:
            return None
        stored = file.get_slice(name)
        shape, kind = tuple(stored.get_shape()), stored.get_dtype()
        if kind not in STORED_TYPES:
            raise ModelError(f"{self._folder.path}: {name} is stored as {kind}; read are {', '.join(STORED_TYPES)}")
        return StoredTensor(name, shape, math.prod(shape) * STORED_TYPES[kind].itemsize, Encoding[kind], file)

    def _shard(self, index: Path, name: str) -> Path:
        # A name with folders in it could lead out of this one; nobody's tool writes such an index.
        if Path(name).name != name or "\\" in name or "\0" in name or not name.endswith(SUFFIX):
            raise ModelError(f"{index} names the shard {name!r}; it must be a *{SUFFIX} file of the same folder")
        path = self._folder.file(name)
        if path is None:
            raise ModelError(f"{index} names the shard {name!r}, which is missing")
        return path


def _weight_map(index: Path, value: Any) -> dict[str, str]:
    if isinstance(value, dict) and value and all(isinstance(shard, str) for shard in value.values()):
        return value
    raise ModelError(f"{index} is damaged: weight_map must map tensors to files")


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="numpy")
    except SafetensorError as error:
        raise ModelError(f"{path} is no safetensors file, or it is damaged or cut short: {error}") from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
