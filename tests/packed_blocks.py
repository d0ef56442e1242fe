"""Packed matrices made, and read back by the description in engine/backends/native/src/layout/format.h."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from engine.backends.native.packer import pack_rows
from engine.weights.encodings import Encoding
from engine.weights.packing import GROUP, TILE, Format, PackedMatrix, Placement, Quantised

_ZERO_POINTS = {Format.INT8: 128, Format.INT4: 8, Format.Q3_K: 4, Format.Q6_K: 32}
_IQ4 = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
_IQ3_XXS, _IQ3_S, _IQ2 = [4, 12, 20, 28, 36, 44, 52, 62], range(1, 16, 2), [8, 25, 43, 0, 0, 0, 0, 0]
_IQ1 = [1, 7, 8, 9, 0, 0, 0, 0]


def _with_negative(positive: Sequence[int]) -> list[int]:
    return [-number for number in reversed(positive)] + list(positive)


# What a code stands for, and what the scales are multiplied with.
_CODES = {
    Format.IQ4_XS: (_IQ4, 1.0), Format.IQ4_NL: (_IQ4, 1.0), Format.IQ3_XXS: (_with_negative(_IQ3_XXS), 0.25),
    Format.IQ3_S: (_with_negative(_IQ3_S), 1.0), Format.IQ2_S: (_with_negative(_IQ2), 0.125),
    Format.IQ1_M: (_with_negative(_IQ1), 0.125),
}  # fmt: skip
_FP4_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)  # of each code
_NUM_GROUPS = 8  # of a block of a K format
# Of the other K formats 1.
_SCALES_OF_A_GROUP = dict.fromkeys((Format.Q2_K, Format.Q3_K, Format.Q6_K, Format.IQ2_S, Format.IQ1_M), 2)
# Vectors of low bits and of high bits, which are as many as the bits of a number.
_BITS = {
    Format.INT8: (8, 0), Format.INT8_MIN: (8, 0), Format.INT4: (4, 0), Format.INT4_MIN: (4, 0), Format.Q2_K: (2, 0),
    Format.INT4_ZERO: (4, 0), Format.INT8_ZERO: (8, 0), Format.MXFP4: (4, 0),
    Format.Q3_K: (2, 1), Format.Q4_K: (4, 0), Format.Q5_K: (4, 1), Format.Q6_K: (4, 2),
} | dict.fromkeys(_CODES, (4, 0))  # fmt: skip


def has_minima(kind: Format) -> bool:
    """Whether each scale has a minimum, or a zero point, beside it."""
    return kind.has_zero_points or kind in (
        Format.INT8_MIN, Format.INT4_MIN, Format.Q2_K, Format.Q4_K, Format.Q5_K,
    )  # fmt: skip


def zero_point(kind: Format) -> np.float32:
    """The number that stands for 0 in formats without minima."""
    return np.float32(8.0 if kind.is_nibbles else 128.0)


def from_nibbles(packed: np.ndarray) -> np.ndarray:
    """Undoes `to_nibbles`."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def pack_stack(
    matrices: Sequence[np.ndarray | Sequence[np.ndarray]], kind: Format, num_outputs: int, *, is_gated: bool = False
) -> PackedMatrix:
    """The matrices of all layers as one stack.

    Args:
        matrices: uint8[tiles, …] of each layer, or one for each part of it.
    """
    layers = [[layer] if isinstance(layer, np.ndarray) else list(layer) for layer in matrices]
    layers = [[part.reshape(len(part), -1) for part in parts] for parts in layers]
    num_inputs = layers[0][0].shape[1] // kind.tile_bytes(kind.input_multiple) * kind.input_multiple
    formats = [[kind] * len(parts) for parts in layers]
    placement = Placement.of(formats, [len(part) for part in layers[0]], num_inputs, is_gated=is_gated)
    blocks = np.zeros(placement.num_bytes, np.uint8)
    for index, parts in enumerate(layers):
        for number, part in enumerate(parts):
            placement.part(blocks, index, number)[:] = part
    return PackedMatrix(jnp.asarray(blocks), placement, num_outputs)


def pack_floats(matrix: np.ndarray, kind: Format) -> np.ndarray:
    """uint8[tiles, tile bytes] of float32[outputs, inputs], as FLOAT32, BFLOAT16 or FLOAT16."""
    is_half = kind is Format.FLOAT16
    rows = np.ascontiguousarray(matrix.astype(np.float16 if is_half else np.float32)).view(np.uint8)
    return pack(Encoding.F16 if is_half else Encoding.F32, rows, kind, matrix.shape[1])


def pack(encoding: Encoding, rows: np.ndarray, kind: Format, num_inputs: int) -> np.ndarray:
    """uint8[tiles, tile bytes] of uint8[outputs, bytes] as in a file."""
    tiles = np.zeros((-(-len(rows) // TILE), kind.tile_bytes(num_inputs)), np.uint8)
    pack_rows(encoding, rows, kind, tiles, num_outputs=len(rows), num_inputs=num_inputs)
    return tiles


def dequantise(matrix: Quantised) -> np.ndarray:
    """float32[outputs, inputs]."""
    numbers = from_nibbles(matrix.numbers) if matrix.format.is_nibbles else matrix.numbers
    wide = numbers.astype(np.float32)
    if matrix.minima is None:
        wide -= zero_point(matrix.format)
    elif matrix.format.has_zero_points:
        wide += matrix.minima[..., None]
    wide *= matrix.scales[..., None]
    if matrix.minima is not None and not matrix.format.has_zero_points:
        wide += matrix.minima[..., None]
    return wide.reshape(len(wide), -1)


def unpack_layers(matrix: PackedMatrix, *, is_gated: bool = False) -> np.ndarray:
    """float32[num_layers, outputs, inputs]; of a gated matrix the gates and then the ups, each in whole tiles."""
    blocks, placement = np.asarray(matrix.blocks), matrix.placement
    layers = [
        np.concatenate([
            unpack(placement.part(blocks, index, part), place.format)
            for part, place in enumerate(parts)
        ])
        for index, parts in enumerate(placement.places)
    ]  # fmt: skip
    return np.stack(layers)[:, : None if is_gated else matrix.num_outputs]


def unpack(tiles: np.ndarray, kind: Format) -> np.ndarray:
    """float32[tiles * 16, inputs] of uint8[tiles, …]."""
    num_tiles = len(tiles)
    block_bytes = kind.tile_bytes(kind.input_multiple)
    blocks = np.ascontiguousarray(tiles).reshape(num_tiles, -1, block_bytes)
    match kind:
        case Format.FLOAT32:
            return _rows(blocks.view(np.float32), at_a_time=1)
        case Format.FLOAT16:
            return _rows(blocks.view(np.float16).astype(np.float32), at_a_time=1)
        case Format.BFLOAT16:
            return _rows(blocks.view(jnp.bfloat16).astype(np.float32), at_a_time=2)
    return _unpack_k(blocks, kind) if kind.is_k else _unpack_groups(blocks, kind)


def _unpack_groups(blocks: np.ndarray, kind: Format) -> np.ndarray:
    """Of blocks of one group: scales and minima of float16."""
    tiles, groups, _ = blocks.shape
    if kind is Format.MXFP4:
        exponents = blocks[:, :, :TILE].transpose(0, 2, 1).reshape(tiles * TILE, groups)
        codes = _rows(_numbers(blocks[:, :, TILE:], kind), at_a_time=4)
        return np.ldexp(_FP4_VALUES[codes], np.repeat(exponents.astype(np.int32) - 127, GROUP, axis=1))
    num_halves = 2 if has_minima(kind) else 1
    halves = _halves(blocks[:, :, : num_halves * 2 * TILE]).reshape(tiles, groups, num_halves, TILE)
    # [num_halves, tiles * 16, inputs]
    of_weights = np.repeat(halves.transpose(2, 0, 3, 1).reshape(num_halves, tiles * TILE, groups), GROUP, axis=2)
    wide = _rows(_numbers(blocks[:, :, num_halves * 2 * TILE :], kind).astype(np.float32), at_a_time=4)
    if kind.has_zero_points:
        return (wide + of_weights[1]) * of_weights[0]
    if has_minima(kind):
        return wide * of_weights[0] + of_weights[1]
    return _without_zero(wide, kind) * of_weights[0]


def _without_zero(numbers: np.ndarray, kind: Format) -> np.ndarray:
    """The numbers without the zero point, or those that codes stand for, with the factor of their scales."""
    if kind not in _CODES:
        return numbers - _ZERO_POINTS[kind]
    codes, factor = _CODES[kind]
    result: np.ndarray = np.array(codes, np.float32)[numbers.astype(np.int32)] * np.float32(factor)
    return result


def _unpack_k(blocks: np.ndarray, kind: Format) -> np.ndarray:
    """Of blocks of eight groups: factors of float16 for each, and scales and minima of int8 for parts of a group."""
    tiles, num_blocks, _ = blocks.shape
    num_halves, num_scales = (2 if has_minima(kind) else 1), _NUM_GROUPS * _SCALES_OF_A_GROUP.get(kind, 1)
    start, size = num_halves * 2 * TILE, num_scales * TILE
    factors = _halves(blocks[:, :, :start]).reshape(tiles, num_blocks, num_halves, 1, TILE)
    small = np.ascontiguousarray(blocks[:, :, start : start + num_halves * size]).view(np.int8).astype(np.float32)
    # [num_halves, tiles * 16, inputs]
    scales = (small.reshape(tiles, num_blocks, num_halves, num_scales, TILE) * factors).transpose(2, 0, 4, 1, 3)
    repeats = _NUM_GROUPS * GROUP // num_scales
    of_weights = np.repeat(scales.reshape(num_halves, tiles * TILE, num_blocks * num_scales), repeats, axis=2)
    behind = -(-(start + num_halves * size) // 64) * 64
    numbers = _numbers(blocks[:, :, behind:].reshape(tiles, num_blocks * _NUM_GROUPS, -1), kind)
    wide = _rows(numbers.astype(np.float32), at_a_time=4)
    if has_minima(kind):
        return wide * of_weights[0] + of_weights[1]
    return _without_zero(wide, kind) * of_weights[0]


def _numbers(packed: np.ndarray, kind: Format) -> np.ndarray:
    """uint8[tiles, groups, 512] of the vectors of low bits and, on top of them, those of high bits."""
    low, high = _BITS[kind]

    def fields(vectors: np.ndarray, bits: int) -> np.ndarray:
        return np.concatenate([vectors >> (field * bits) & ((1 << bits) - 1) for field in range(8 // bits)], axis=-1)

    numbers = fields(packed[..., : 64 * low], low) if low < 8 else packed
    return numbers | fields(packed[..., 64 * low :], high) << low if high else numbers


def _halves(packed: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(packed).view(np.float16).astype(np.float32)


def _rows(values: np.ndarray, at_a_time: int) -> np.ndarray:
    """[tiles * 16, inputs] of [tiles, groups, 512], where so many inputs of an output stand together."""
    tiles, groups, _ = values.shape
    words = values.reshape(tiles, groups, GROUP // at_a_time, TILE, at_a_time)
    return words.transpose(0, 3, 1, 2, 4).reshape(tiles * TILE, groups * GROUP)
