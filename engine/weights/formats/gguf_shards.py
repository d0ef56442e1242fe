"""GGUF models that are split over several files (shards), without JAX, for engine and server.

Source of names and fields: `gguf-split` of llama.cpp. `NAME-00001-of-00003.gguf` is the first of three shards and holds
all fields; each states its number from 0 (`split.no`), how many there are (`split.count`) and how many tensors they
have together (`split.tensors.count`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from gguf import ReaderTensor

from engine.interface.errors import ModelError
from engine.weights.formats.fields import MAX_INTEGER
from engine.weights.formats.gguf_file import GGUFFile

NUMBER, COUNT, NUM_TENSORS = "split.no", "split.count", "split.tensors.count"

_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ShardName:
    """The parsed file name of a shard."""

    stem: str  # the name of the model
    number: int  # from 1
    count: int

    @classmethod
    def parse(cls, file_name: str) -> ShardName | None:
        """None where the name is not that of one of several shards."""
        match = _NAME.fullmatch(file_name)
        if match is None:
            return None
        name = cls(match[1], int(match[2]), int(match[3]))
        return name if 1 <= name.number <= name.count and name.count > 1 else None

    def file_names(self) -> list[str]:
        """The names of all shards, in their order."""
        return [f"{self.stem}-{number:05d}-of-{self.count:05d}.gguf" for number in range(1, self.count + 1)]


def shard_paths(path: Path) -> list[Path]:
    """The files of the model of a GGUF file, whether they exist or not; `path` alone where its name is no shard's."""
    name = ShardName.parse(path.name)
    return [path] if name is None else [path.with_name(other) for other in name.file_names()]


def tensors_of_shards(path: Path, first: GGUFFile) -> dict[str, ReaderTensor]:
    """The tensors of a model by name, from its open first shard and all others; raises ModelError if they differ."""
    name, count = ShardName.parse(path.name), _count(path, first, COUNT, least=1)
    if name is None and (count or 1) > 1:
        raise ModelError(
            f"{path} is a shard of {count} ({COUNT}), but is not called NAME-00001-of-{count:05d}.gguf, "
            "so the others cannot be found"
        )
    if name is not None and name.number != 1:
        raise ModelError(f"{path} is shard {name.number} of {name.count}; give the first, {name.file_names()[0]}")
    found: dict[str, ReaderTensor] = {}
    for number, shard in enumerate(shard_paths(path)):
        file = first if number == 0 else _open_shard(shard, path)
        if name is not None:
            _check(shard, file, NUMBER, number)
            _check(shard, file, COUNT, name.count)
        for tensor in file.tensors:
            if tensor.name in found:
                raise ModelError(f"{shard} has the tensor {tensor.name!r}, which an earlier shard has too")
            found[tensor.name] = tensor
    num_tensors = _count(path, first, NUM_TENSORS, least=0)
    if num_tensors not in (None, len(found)):
        raise ModelError(f"{path}: {NUM_TENSORS} is {num_tensors}, but the shards have {len(found)} tensors")
    return found


def _open_shard(shard: Path, first: Path) -> GGUFFile:
    try:
        return GGUFFile(shard)
    except FileNotFoundError as error:
        raise ModelError(f"{shard} is missing, a shard of the model that begins with {first.name}") from error
    except OSError as error:
        raise ModelError(f"{shard} cannot be read: {error.strerror}") from error


def _check(path: Path, file: GGUFFile, key: str, expected: int) -> None:
    value = _count(path, file, key, least=0)
    if value != expected:
        stated = "missing" if value is None else value
        raise ModelError(f"{path}: the field {key} is {stated}; by the name of the file it must be {expected}")


def _count(path: Path, file: GGUFFile, key: str, *, least: int) -> int | None:
    value = file.value(key)
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= MAX_INTEGER:
        return value
    raise ModelError(f"{path}: the field {key} is {str(value)[:80]}; it must be an integer from {least}")
