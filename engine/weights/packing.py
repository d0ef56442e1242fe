"""Packed weight matrices for the native kernels, in blocks of 16 outputs and 32 inputs (src/layout/format.h)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import jax
import numpy as np

TILE = 16  # outputs of a block
GROUP = 32  # inputs of a group
ALIGNMENT = 64  # bytes of a line of the cache, in which offsets count


class PackingError(ValueError):
    """Weights that no packed matrix can hold. The message does not name the tensor; the layout that packs it does."""


class Format(IntEnum):
    """The numbers in a block; the values are those of the kernels."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2  # weight = scale * (number - 128)
    INT8_MIN = 3  # weight = scale * number + minimum
    INT4 = 4  # weight = scale * (number - 8)
    INT4_MIN = 5
    FLOAT16 = 6
    # The numbers of the formats of these names in GGUF files, whose scales are products of two.
    Q2_K = 7
    Q3_K = 8
    Q4_K = 9
    Q5_K = 10
    Q6_K = 11
    IQ4_XS = 12
    # weight = scale * (number - zero point), each group with a zero point of its own.
    INT4_ZERO = 13
    INT8_ZERO = 14
    MXFP4 = 15  # floats of 4 bits, and a power of two as the scale of each group
    # Codes of 4 bits, each of which stands for a number of the formats of these names.
    IQ4_NL = 16
    IQ3_XXS = 17
    IQ3_S = 18
    IQ2_S = 19  # and of IQ2_XXS and IQ2_XS
    IQ1_M = 20  # and of IQ1_S, TQ1_0 and TQ2_0

    @property
    def is_integer(self) -> bool:
        return self not in (Format.FLOAT32, Format.BFLOAT16, Format.FLOAT16)

    @property
    def is_k(self) -> bool:
        """Whether a block is of eight groups."""
        return Format.Q2_K <= self <= Format.IQ4_XS or Format.IQ3_XXS <= self <= Format.IQ1_M

    @property
    def is_nibbles(self) -> bool:
        return self in (Format.INT4, Format.INT4_MIN, Format.INT4_ZERO)

    @property
    def has_zero_points(self) -> bool:
        """Whether negated zero points, float16, stand where other formats have minima."""
        return self in (Format.INT4_ZERO, Format.INT8_ZERO)

    @property
    def input_multiple(self) -> int:
        """The number of inputs is a multiple of it."""
        return 8 * GROUP if self.is_k else GROUP

    def tile_bytes(self, num_inputs: int) -> int:
        """Of 16 outputs and `num_inputs` inputs."""
        return num_inputs // self.input_multiple * _BLOCK_BYTES[self]


# As src/layout/format.h lays them out.
_BLOCK_BYTES = {
    Format.FLOAT32: TILE * GROUP * 4,
    Format.BFLOAT16: TILE * GROUP * 2,
    Format.FLOAT16: TILE * GROUP * 2,
    Format.INT8: 32 + 512,
    Format.INT8_MIN: 64 + 512,
    Format.INT4: 32 + 256,
    Format.INT4_MIN: 64 + 256,
    Format.Q2_K: 576 + 8 * 128,
    Format.Q3_K: 320 + 8 * 192,
    Format.Q4_K: 320 + 8 * 256,
    Format.Q5_K: 320 + 8 * 320,
    Format.Q6_K: 320 + 8 * 384,
    Format.IQ4_XS: 192 + 8 * 256,
    Format.INT4_ZERO: 64 + 256,
    Format.INT8_ZERO: 64 + 512,
    Format.MXFP4: 16 + 256,
    Format.IQ4_NL: 32 + 256,
    Format.IQ3_XXS: 192 + 8 * 256,
    Format.IQ3_S: 192 + 8 * 256,
    Format.IQ2_S: 320 + 8 * 256,
    Format.IQ1_M: 320 + 8 * 256,
}


class Place(NamedTuple):
    """Where a part of a matrix lies among the bytes of its stack."""

    format: Format
    offset: int  # of its first tile, a multiple of ALIGNMENT
    stride: int  # from tile to tile


@dataclass(frozen=True)
class Placement:
    """Where the matrices of a stack lie: each joined of parts with the same tiles, a part in a format of its own."""

    places: tuple[tuple[Place, ...], ...]  # by the index into the stack, then by part
    tiles: tuple[int, ...]  # of each part
    num_inputs: int
    as_bfloat16: bool = False  # whether integers are multiplied as bfloat16, to which they are unpacked then

    @classmethod
    def of(
        cls, formats: Sequence[Sequence[Format]], tiles: Sequence[int], num_inputs: int, *,
        is_gated: bool, as_bfloat16: bool = False,
    ) -> Placement:  # fmt: skip
        """Lays parts one behind the other; `formats` are by the index into the stack, then by part.

        If `is_gated`, the tiles of the two parts, gates and ups, alternate, as a gated product reads them.
        """
        places, offset = [], 0
        for parts in formats:
            sizes, of_matrix = [kind.tile_bytes(num_inputs) for kind in parts], list[Place]()
            start = offset
            for kind, size, count in zip(parts, sizes, tiles, strict=True):
                # Tiles in turn have no room for padding between them, so that only their own sizes align them.
                in_turn = is_gated and all(own % ALIGNMENT == 0 for own in sizes)
                of_matrix.append(Place(kind, start, sum(sizes) if in_turn else size))
                start += size if in_turn else _aligned(size * count)
            offset = max(
                _aligned(place.offset + (count - 1) * place.stride + size)
                for place, count, size in zip(of_matrix, tiles, sizes, strict=True)
            )
            places.append(tuple(of_matrix))
        return cls(tuple(places), tuple(tiles), num_inputs, as_bfloat16)

    @property
    def num_bytes(self) -> int:
        return max(
            _aligned(place.offset + (count - 1) * place.stride + place.format.tile_bytes(self.num_inputs))
            for parts in self.places
            for place, count in zip(parts, self.tiles, strict=True)
        )

    @property
    def formats(self) -> frozenset[Format]:
        return frozenset(place.format for parts in self.places for place in parts)

    def part(self, blocks: np.ndarray, index: int, part: int) -> np.ndarray:
        """uint8[tiles, tile bytes], a view of the tiles of one part."""
        place, count = self.places[index][part], self.tiles[part]
        size = place.format.tile_bytes(self.num_inputs)
        return np.lib.stride_tricks.as_strided(blocks[place.offset :], (count, size), (place.stride, 1))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PackedMatrix:
    """A stack of matrices [outputs, inputs], such as those of all layers, each part in a format of its own."""

    blocks: jax.Array  # uint8[bytes]
    placement: Placement = field(metadata={"static": True})
    num_outputs: int = field(metadata={"static": True})

    @property
    def num_inputs(self) -> int:
        return self.placement.num_inputs


class Quantised(NamedTuple):
    """A matrix [outputs, inputs] as numbers in groups of 32 inputs, before it is packed."""

    format: Format  # INT8, INT4 or one of their twins with minima or zero points
    scales: np.ndarray  # float32[outputs, groups]
    minima: np.ndarray | None  # float32[outputs, groups], of formats that have them: minima, or negated zero points
    numbers: np.ndarray  # uint8[outputs, groups, 32], or [outputs, groups, 16] of two nibbles a byte


def pack_quantised(matrix: Quantised) -> np.ndarray:
    """uint8[tiles, groups, block bytes]; outputs are padded with zeros to whole tiles.

    Scales and minima are rounded to float16, by at most 1 part in 2,000 or 3e-8. Raises PackingError where one is
    beyond float16.
    """
    num_outputs, num_groups = matrix.scales.shape
    tiles = -(-num_outputs // TILE)
    blocks = np.zeros((tiles, num_groups, _BLOCK_BYTES[matrix.format]), np.uint8)

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


def quantise(matrix: np.ndarray, bits: int) -> Quantised:
    """Rounds float32[outputs, inputs] to 8 bits (scale alone) or 4 bits (scale and minimum) a weight.

    The error of a weight is at most half a step: of 8 bits, 1/127 of its group's largest magnitude; of 4 bits, 1/15 of
    the group's range, where the minimum was rounded down and the step up to float16.

    Raises PackingError: a weight is not finite, or its step or minimum is beyond float16.
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


def to_nibbles(numbers: np.ndarray) -> np.ndarray:
    """uint8[..., 16] from uint8[..., 32] below 16: the first half in the low nibbles, the second in the high ones."""
    packed: np.ndarray = numbers[..., : GROUP // 2] | (numbers[..., GROUP // 2 :] << 4)
    return packed


def _float16(values: np.ndarray) -> np.ndarray:
    """The nearest float16[...]; raises PackingError if one is not finite, or is beyond float16."""
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


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
