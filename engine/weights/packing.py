"""Weight matrices as the native kernels read them: packed in blocks of 16 outputs and 32 inputs.

The layout is described in engine/kernels/native/src/products/format.h.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import jax
import numpy as np

TILE = 16  # outputs of a block
GROUP = 32  # inputs of a block


class PackingError(ValueError):
    """Weights that no packed matrix can hold. The message does not name the tensor; the layout that packs it does."""


class Format(IntEnum):
    """What a block holds; the values are those of the kernels."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2  # weight = scale * (number - 128)
    INT8_MIN = 3  # weight = scale * number + minimum
    INT4 = 4  # weight = scale * (number - 8)
    INT4_MIN = 5

    @property
    def is_integer(self) -> bool:
        return self >= Format.INT8

    @property
    def is_nibbles(self) -> bool:
        return self in (Format.INT4, Format.INT4_MIN)

    @property
    def has_minima(self) -> bool:
        return self in (Format.INT8_MIN, Format.INT4_MIN)

    @property
    def block_bytes(self) -> int:
        if not self.is_integer:
            return TILE * GROUP * (4 if self is Format.FLOAT32 else 2)
        return TILE * (4 if self.has_minima else 2) + TILE * GROUP // (2 if self.is_nibbles else 1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PackedMatrix:
    """Matrices [outputs, inputs] of all layers, in one format."""

    blocks: jax.Array  # uint8[num_layers, tiles, groups, block bytes]
    format: Format = field(metadata={"static": True})
    num_outputs: int = field(metadata={"static": True})

    @property
    def num_inputs(self) -> int:
        return self.blocks.shape[2] * GROUP


class Quantised(NamedTuple):
    """A matrix [outputs, inputs] as numbers in groups of 32 inputs, before it is packed."""

    format: Format
    scales: np.ndarray  # float32[outputs, groups]
    minima: np.ndarray | None  # float32[outputs, groups], of formats that have them
    numbers: np.ndarray  # uint8[outputs, groups, 32], or [outputs, groups, 16] of two nibbles a byte

    def reordered(self, order: np.ndarray) -> Quantised:
        """Its outputs in another order, int[outputs]."""
        minima = None if self.minima is None else self.minima[order]
        return Quantised(self.format, self.scales[order], minima, self.numbers[order])


def pack_quantised(matrix: Quantised) -> np.ndarray:
    """uint8[tiles, groups, block bytes]; outputs are padded with zeros to whole tiles.

    Scales and minima are rounded to float16, which changes nothing where they come from it and
    at most 1 part in 2,000 elsewhere, or 3e-8.

    Raises:
        PackingError: a scale or minimum is beyond float16.
    """
    num_outputs, num_groups = matrix.scales.shape
    tiles = -(-num_outputs // TILE)
    blocks = np.zeros((tiles, num_groups, matrix.format.block_bytes), np.uint8)

    def halves(values: np.ndarray) -> np.ndarray:
        padded = _float16(_pad(values, tiles))
        return np.ascontiguousarray(padded.reshape(tiles, TILE, num_groups).swapaxes(1, 2)).view(np.uint8)

    offset = TILE * 2
    blocks[:, :, :offset] = halves(matrix.scales)
    if matrix.minima is not None:
        blocks[:, :, offset : 2 * offset] = halves(matrix.minima)
        offset *= 2
    numbers = _pad(matrix.numbers, tiles)
    blocks[:, :, offset:] = _interleave(numbers, tiles, num_groups)
    return blocks


def pack_floats(matrix: np.ndarray, kind: Format) -> np.ndarray:
    """uint8[tiles, groups, block bytes] of float32[outputs, inputs], as FLOAT32 or BFLOAT16."""
    num_outputs, num_inputs = matrix.shape
    tiles, num_groups = -(-num_outputs // TILE), num_inputs // GROUP
    if kind is Format.BFLOAT16:
        matrix = matrix.astype(jax.numpy.bfloat16).view(np.uint16)
    padded = np.ascontiguousarray(_pad(matrix, tiles)).view(np.uint8).reshape(tiles * TILE, num_groups, -1)
    return _interleave(padded, tiles, num_groups)


def alternate_tiles(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Tiles of two packed matrices of equal shape in turn, as a gated product takes them."""
    return np.stack([first, second], axis=1).reshape(-1, *first.shape[1:])


def quantise(matrix: np.ndarray, bits: int) -> Quantised:
    """Rounds float32[outputs, inputs] to 8 bits (scale alone) or 4 bits (scale and minimum) a weight.

    The error of a weight is at most half a step. A step is of 8 bits 1/127 of its group's largest
    magnitude, of 4 bits 1/15 of the range from the group's minimum to its maximum, where the
    minimum was rounded down and then the step up to float16: by 1 part in 1,000, or 6e-8.

    Raises:
        PackingError: a weight is not finite, or so large that its step or minimum is beyond float16.
    """
    groups = matrix.reshape(matrix.shape[0], -1, GROUP)
    if bits == 8:
        scales = _float16_above(np.abs(groups).max(axis=2) / np.float32(127.0))
        numbers = np.rint(groups / _nonzero(scales)[..., None]) + np.float32(128.0)
        return Quantised(Format.INT8, scales, None, numbers.astype(np.uint8))
    minima = -_float16_above(-groups.min(axis=2))
    scales = _float16_above((groups.max(axis=2) - minima) / np.float32(15.0))
    numbers = np.rint((groups - minima[..., None]) / _nonzero(scales)[..., None]).astype(np.uint8)
    return Quantised(Format.INT4_MIN, scales, minima, to_nibbles(numbers))


def widen(matrix: Quantised, kind: Format) -> Quantised:
    """The same weights, exactly, in INT8_MIN, or of INT4 in INT4_MIN."""
    numbers = matrix.numbers
    if matrix.format.is_nibbles and not kind.is_nibbles:
        numbers = from_nibbles(numbers)
    minima = matrix.minima if matrix.minima is not None else matrix.scales * -zero_point(matrix.format)
    return Quantised(kind, matrix.scales, minima, numbers)


def zero_point(kind: Format) -> np.float32:
    """The number that stands for 0 in formats without minima."""
    return np.float32(8.0 if kind.is_nibbles else 128.0)


def from_nibbles(packed: np.ndarray) -> np.ndarray:
    """Undoes `to_nibbles`."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def to_nibbles(numbers: np.ndarray) -> np.ndarray:
    """uint8[..., 16] from uint8[..., 32] below 16: the first half in the low nibbles, the second in the high ones."""
    packed: np.ndarray = numbers[..., : GROUP // 2] | (numbers[..., GROUP // 2 :] << 4)
    return packed


def _float16(values: np.ndarray) -> np.ndarray:
    """float16[...], the nearest.

    Raises:
        PackingError: one is not finite, or is beyond float16.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        halves = values.astype(np.float16)
    if not np.isfinite(halves).all():
        raise PackingError("it has weights that are not finite, or too large for groups with scales of float16")
    return halves


def _float16_above(values: np.ndarray) -> np.ndarray:
    """Rounded up to float16, float32[...]: numbers are rounded against the scales that will be used."""
    halves = _float16(values)
    with np.errstate(over="ignore"):
        above = np.nextafter(halves, np.float16(np.inf))
    return _float16(np.where(halves < values, above, halves)).astype(np.float32)


def _nonzero(scales: np.ndarray) -> np.ndarray:
    return np.where(scales == 0.0, np.float32(1.0), scales)


def _pad(rows: np.ndarray, tiles: int) -> np.ndarray:
    missing = tiles * TILE - rows.shape[0]
    return np.pad(rows, [(0, missing)] + [(0, 0)] * (rows.ndim - 1)) if missing else rows


def _interleave(rows: np.ndarray, tiles: int, num_groups: int) -> np.ndarray:
    """From uint8[outputs, groups, bytes] to [tiles, groups, ...]: four bytes after four, of all 16 outputs each."""
    words = rows.reshape(tiles, TILE, num_groups, -1, 4).transpose(0, 2, 3, 1, 4)
    return np.ascontiguousarray(words).reshape(tiles, num_groups, -1)
