"""Matrices of MXFP4: floats of 4 bits with a power of two for each 32 inputs, as gpt-oss's folders hold its experts.

Source of the format: OCP Microscaling Formats (MX) Specification, 2023. A tensor is two of bytes: `NAME_blocks`
[…, outputs, groups, 16], whose bytes hold neighbouring inputs, the first in the low half, and `NAME_scales`
[…, outputs, groups], exponents plus 127.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from engine.interface.errors import ModelError
from engine.weights.encodings import EncodedRows, Encoding
from engine.weights.formats.file_array import FileArray
from engine.weights.formats.safetensors_files import PACKED_TYPES, SafetensorsFiles
from engine.weights.packing import GROUP, Format, to_nibbles

BLOCKS, SCALES = "_blocks", "_scales"

_TYPES: Mapping[str, np.dtype[Any]] = MappingProxyType({"U8": PACKED_TYPES["U8"]})
_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_VALUES = np.array([*_POSITIVE, *(-value for value in _POSITIVE)], np.float32)  # of each code
_NO_NUMBER = 255  # in place of an exponent


@dataclass(frozen=True)
class Mxfp4Tensor:
    """A `FileTensor` of two tensors of a folder, which stays exact in its packed format."""

    name: str  # of the blocks
    blocks: FileArray
    scales: FileArray

    format = Format.MXFP4

    @property
    def shape(self) -> tuple[int, ...]:
        *outer, groups, _ = self.blocks.shape
        return (*outer, groups * GROUP)

    @property
    def num_bytes(self) -> int:
        return self.blocks.nbytes + self.scales.nbytes

    def float32(self) -> np.ndarray:
        """Raises ModelError if a scale is no number."""
        exponents = self.scales.read()
        if (exponents == _NO_NUMBER).any():
            raise ModelError(f"{self.name.removesuffix(BLOCKS)}{SCALES} has a scale that is no number")
        values = _VALUES[_codes(self.blocks.read())]
        scaled: np.ndarray = np.ldexp(values, exponents.astype(np.int32)[..., None] - 127)
        return scaled.reshape(self.shape)

    def encoded(self) -> EncodedRows | None:
        if len(self.shape) != 2:
            return None

        def read(start: int, stop: int) -> np.ndarray:
            exponents = self.scales.read_bytes(start, stop)
            codes = _codes(self.blocks.read_bytes(start, stop).reshape(*exponents.shape, GROUP // 2))
            return np.concatenate([exponents[..., None], to_nibbles(codes)], axis=-1).reshape(stop - start, -1)

        return EncodedRows(Encoding.MXFP4, *self.shape, read=read)

    def expert(self, index: int) -> Mxfp4Tensor:
        return Mxfp4Tensor(self.name, self.blocks[index], self.scales[index])


def read_tensor(files: SafetensorsFiles, name: str) -> Mxfp4Tensor:
    """The tensor whose blocks have this name; raises ModelError if a part is missing, or of another type or shape."""
    of_scales = name.removesuffix(BLOCKS) + SCALES
    blocks, scales = files.array(name, _TYPES), files.array(of_scales, _TYPES)
    if blocks is None or scales is None:
        raise ModelError(f"{name} lacks the tensor {name if blocks is None else of_scales!r}")
    if blocks.ndim < 3 or blocks.shape[-1] != GROUP // 2:
        raise ModelError(f"{name} has shape {blocks.shape}; its last axis must be {GROUP // 2} bytes of a group")
    if scales.shape != blocks.shape[:-1]:
        raise ModelError(f"{of_scales} has shape {scales.shape}, expected {blocks.shape[:-1]}")
    return Mxfp4Tensor(name, blocks, scales)


def names_of_blocks(names: Set[str]) -> frozenset[str]:
    """The names of all tensors of blocks among those of a folder."""
    return frozenset(name for name in names if name.endswith(BLOCKS))


def names_of_scales(names: Set[str]) -> frozenset[str]:
    """The names of the tensors of scales that belong to tensors of blocks."""
    return frozenset(name.removesuffix(BLOCKS) + SCALES for name in names_of_blocks(names))


def _codes(packed: np.ndarray) -> np.ndarray:
    """uint8[…, 32] below 16 of uint8[…, 16], neighbours in one byte."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], GROUP)
