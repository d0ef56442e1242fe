"""Packed matrices made, and read back by the description in engine/kernels/native/src/products/format.h."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from engine.weights.packing import GROUP, TILE, Format, PackedMatrix, Quantised, from_nibbles, zero_point


def pack_stack(matrices: list[np.ndarray], kind: Format, num_outputs: int) -> PackedMatrix:
    """The packed matrices of all layers as one."""
    return PackedMatrix(jnp.asarray(np.stack(matrices)), kind, num_outputs)


def float32(matrix: Quantised) -> np.ndarray:
    """float32[outputs, inputs]."""
    numbers = from_nibbles(matrix.numbers) if matrix.format.is_nibbles else matrix.numbers
    wide = numbers.astype(np.float32)
    if matrix.minima is None:
        wide -= zero_point(matrix.format)
    wide *= matrix.scales[..., None]
    if matrix.minima is not None:
        wide += matrix.minima[..., None]
    return wide.reshape(len(wide), -1)


def unpack(blocks: np.ndarray, kind: Format) -> np.ndarray:
    """float32[tiles * 16, inputs] of uint8[tiles, groups, block bytes]."""
    tiles, groups, _ = blocks.shape
    if not kind.is_integer:
        floats = blocks.view(np.float32 if kind is Format.FLOAT32 else jnp.bfloat16)
        return _rows(floats.astype(np.float32), at_a_time=1 if kind is Format.FLOAT32 else 2)
    num_halves = 2 if kind.has_minima else 1
    halves = np.ascontiguousarray(blocks[:, :, : num_halves * 2 * TILE]).view(np.float16)
    # [num_halves, tiles, groups, 16], for each output of a tile
    halves = np.moveaxis(halves.astype(np.float32).reshape(tiles, groups, num_halves, TILE), 2, 0)
    numbers = np.ascontiguousarray(blocks[:, :, num_halves * 2 * TILE :])
    if kind.is_nibbles:
        numbers = np.concatenate([numbers & 15, numbers >> 4], axis=2)
    per_output = np.repeat(np.moveaxis(halves, 3, 2).reshape(num_halves, tiles * TILE, groups), GROUP, axis=2)
    wide = _rows(numbers.astype(np.float32), at_a_time=4)
    if kind.has_minima:
        return wide * per_output[0] + per_output[1]
    return (wide - (8 if kind.is_nibbles else 128)) * per_output[0]


def _rows(values: np.ndarray, at_a_time: int) -> np.ndarray:
    """[tiles * 16, inputs] of [tiles, groups, 512], where so many inputs of an output stand together."""
    tiles, groups, _ = values.shape
    words = values.reshape(tiles, groups, GROUP // at_a_time, TILE, at_a_time)
    return words.transpose(0, 3, 1, 2, 4).reshape(tiles * TILE, groups * GROUP)
