"""The tensors of a model folder: one safetensors file, or several that an index lists.

Source of the formats: the safetensors project for the files, Hugging Face transformers for the index, whose
`weight_map` says which file (shard) holds which tensor.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import numpy as np

from engine.interface.errors import ModelError
from engine.weights.encodings import EncodedRows, Encoding
from engine.weights.formats.file_array import FileArray, ModelFile
from engine.weights.formats.lfs_pointer import refuse_pointer
from engine.weights.formats.model_folder import ModelFolder
from engine.weights.packing import Format

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SUFFIX = ".safetensors"
PICKLES = (".bin", ".pt", ".pth")

# The types of weights that are not quantised. JAX registers bfloat16 as a numpy type.
STORED_TYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(jnp.bfloat16)}
)
# Further types in quantised checkpoints.
PACKED_TYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        "I8": np.dtype(np.int8), "U8": np.dtype(np.uint8), "I32": np.dtype(np.int32), "I64": np.dtype(np.int64),
        "F8_E4M3": np.dtype(jnp.float8_e4m3fn),
    }
)  # fmt: skip
# Bits of a number, of every type of the format: a tensor lies where those before it end.
_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
_SIZE_BYTES = 8  # of the number in front, which says how long the header is
_MAX_HEADER_BYTES = 32 << 20  # of some 300,000 tensors; other models wait for the interpreter while it is read


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor in its file, read lazily."""

    name: str
    data: FileArray
    encoding: Encoding

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def num_bytes(self) -> int:
        return self.data.nbytes

    @property
    def format(self) -> Format:
        return self.encoding.format

    def encoded(self) -> EncodedRows | None:
        if len(self.shape) != 2:
            return None
        return EncodedRows(self.encoding, self.shape[0], self.shape[1], read=self.data.read_bytes)

    def float32(self) -> np.ndarray:
        return self.data.read().astype(np.float32, copy=False)

    def expert(self, index: int) -> StoredTensor:
        return StoredTensor(self.name, self.data[index], self.encoding)


@dataclass(frozen=True)
class _Place:
    """Where a tensor lies in its file."""

    file: ModelFile
    start: int
    kind: str
    shape: tuple[int, ...]


class _Tensors:
    """Tensors by name, opened and not yet read."""

    def __init__(self, path: Path, places: dict[str, _Place]) -> None:
        self._path = path  # for messages
        self._places = places

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._places)

    def tensor(self, name: str) -> StoredTensor | None:
        """A tensor of weights by its name, or None; raises ModelError if its format is not supported."""
        data = self.array(name, STORED_TYPES)
        return None if data is None else StoredTensor(name, data, Encoding[self._places[name].kind])

    def kind_of(self, name: str) -> str | None:
        """The stored type of a tensor, such as "BF16"; None where there is none of that name."""
        return self._places[name].kind if name in self._places else None

    def array(self, name: str, types: Mapping[str, np.dtype[Any]]) -> FileArray | None:
        """A tensor, not yet read, or None; raises ModelError if it is not of one of the types."""
        place = self._places.get(name)
        if place is None:
            return None
        if place.kind not in types:
            raise ModelError(f"{self._path}: {name} is stored as {place.kind}; read are {', '.join(types)}")
        return FileArray(place.file, place.start, types[place.kind], place.shape)


class SafetensorsFile(_Tensors):
    """All tensors of one file."""

    def __init__(self, path: Path) -> None:
        """Raises ModelError: the file cannot be read, is damaged or cut short."""
        super().__init__(path, dict(_places(path)))


class SafetensorsFiles(_Tensors):
    """All tensors of a model folder, checked for completeness."""

    format = "safetensors"

    def __init__(self, folder: ModelFolder) -> None:
        """Raises:
        ModelError: there are no safetensors files; one is missing, damaged or cut short; the index does not fit
            them, or names a file that is not in the folder.
        """
        super().__init__(folder.path, {})
        self._folder = folder
        single = folder.file(WEIGHTS)
        if single is not None:
            self._places = dict(_places(single))
            return
        index = folder.json(INDEX)
        if index is None:
            raise ModelError(f"{folder.path} has neither {WEIGHTS} nor {INDEX}{_what_is_there(folder.path)}")
        files: dict[str, dict[str, _Place]] = {}
        for tensor, shard in _weight_map(index.path, index.value("weight_map")).items():
            if shard not in files:
                files[shard] = dict(_places(self._shard(index.path, shard)))
            if tensor not in files[shard]:
                raise ModelError(f"{folder.path / shard} has no tensor {tensor!r}, although {INDEX} says so")
            self._places[tensor] = files[shard][tensor]

    def _shard(self, index: Path, name: str) -> Path:
        # A name with folders in it could lead out of this one; no known tool writes such an index.
        if Path(name).name != name or "\\" in name or "\0" in name or not name.endswith(SUFFIX):
            raise ModelError(f"{index} names the shard {name!r}; it must be a *{SUFFIX} file of the same folder")
        path = self._folder.file(name)
        if path is None:
            raise ModelError(f"{index} names the shard {name!r}, which is missing")
        return path


def _what_is_there(folder: Path) -> str:
    """The end of a message: which weights the folder has instead of those that are supported."""
    names = sorted(path.name for path in folder.iterdir())
    pickles = [name for name in names if name.endswith(PICKLES)]
    shards = [name for name in names if name.endswith(SUFFIX)]
    if shards:
        return f", but {shards[0]}: fetch the index too, or the folder again"
    if pickles:
        return f", but {pickles[0]}: pickles are not read, because they may run code; save the weights as safetensors"
    return "; no other format is read"


def _weight_map(index: Path, value: Any) -> dict[str, str]:
    if isinstance(value, dict) and value and all(isinstance(shard, str) for shard in value.values()):
        return value
    raise ModelError(f"{index} is damaged: weight_map must map tensors to files")


def _places(path: Path) -> Iterator[tuple[str, _Place]]:
    """Where each tensor of a file lies.

    Raises:
        ModelError: the file cannot be read, is damaged or cut short, or has a tensor of an unknown type.
    """
    refuse_pointer(path)
    try:
        file = ModelFile(path)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    try:
        yield from _places_in(file)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is no safetensors file, or it is damaged or cut short: {error}") from error


def _places_in(file: ModelFile) -> Iterator[tuple[str, _Place]]:
    """As `_places`; raises ValueError for damage.

    As the library demands, tensors lie one behind the other, and the last one ends with the file. (The library itself
    maps the file, which would end this process if the file is cut meanwhile.)
    """
    if file.size < _SIZE_BYTES:
        raise ValueError("it has no header")
    num_bytes = int.from_bytes(file.read(0, _SIZE_BYTES).tobytes(), "little")
    if num_bytes > min(_MAX_HEADER_BYTES, file.size - _SIZE_BYTES):
        raise ValueError(
            f"its header has {num_bytes} bytes, the file {file.size}; a header may have {_MAX_HEADER_BYTES}"
        )
    place = data = _SIZE_BYTES + num_bytes
    header = json.loads(file.read(_SIZE_BYTES, data).tobytes().decode("utf-8"))
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    header.pop("__metadata__", None)
    tensors = [(_span(name, tensor), name, tensor) for name, tensor in header.items()]
    for (begin, end), name, tensor in sorted(tensors, key=lambda found: found[0]):
        kind, shape = tensor.get("dtype"), tensor.get("shape")
        if not isinstance(kind, str) or kind not in _BITS:
            raise ModelError(f"{file.path}: {name} is stored as {str(kind)[:80]}, which is not known")
        if not isinstance(shape, list) or not all(_is_size(size) for size in shape):
            raise ValueError(f"the shape of {name} is no list of sizes")
        if data + begin != place or (end - begin) * 8 != math.prod(shape) * _BITS[kind]:
            raise ValueError(f"{name} does not begin where the tensor before it ends, or is not as long as its shape")
        yield name, _Place(file, place, kind, tuple(shape))
        place = data + end
    if place != file.size:
        raise ValueError(f"its tensors end at byte {place} of {file.size}")


def _span(name: str, tensor: Any) -> tuple[int, int]:
    """Where the bytes of a tensor begin and end behind the header."""
    offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
    if isinstance(offsets, list) and len(offsets) == 2 and all(_is_size(offset) for offset in offsets):
        return offsets[0], offsets[1]
    raise ValueError(f"{name} has no offsets")


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63
