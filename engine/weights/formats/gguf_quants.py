"""Quantised tensors of GGUF files as numbers, scales and minima, without a detour through floats.

The block layouts are those of the ggml project (ggml-common.h, ggml-quants.c). Formats that
`FORMATS` lacks have no packed form of their own: their tensors count as floats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from engine.weights.packing import GROUP, Format, Quantised, from_nibbles, quantise, to_nibbles

_SUPER = 256  # weights of a K-quant's block

# What packing keeps of each format. Q6_K has scales for 16 weights, so it is rounded to 8 bits
# with scales for 32: an error of at most 1/254 of a group's largest weight.
FORMATS: Mapping[GGMLQuantizationType, Format] = {
    GGMLQuantizationType.Q8_0: Format.INT8,
    GGMLQuantizationType.Q4_0: Format.INT4,
    GGMLQuantizationType.Q4_1: Format.INT4_MIN,
    GGMLQuantizationType.Q5_0: Format.INT8_MIN,
    GGMLQuantizationType.Q5_1: Format.INT8_MIN,
    GGMLQuantizationType.Q4_K: Format.INT4_MIN,
    GGMLQuantizationType.Q5_K: Format.INT8_MIN,
    GGMLQuantizationType.Q6_K: Format.INT8,
}


def quantised(data: np.ndarray, kind: GGMLQuantizationType) -> Quantised:
    """A matrix of one of FORMATS.

    Args:
        data: uint8[outputs, bytes], as in the file.
    """
    if kind is GGMLQuantizationType.Q6_K:
        return quantise(dequantize(data, kind), 8)
    return _READERS[kind](data)


def _halves(blocks: np.ndarray, offset: int) -> np.ndarray:
    """float32[outputs, groups] of a float16 in each block."""
    return np.ascontiguousarray(blocks[:, :, offset : offset + 2]).view(np.float16)[..., 0].astype(np.float32)


def _q8_0(data: np.ndarray) -> Quantised:
    blocks = data.reshape(len(data), -1, 2 + GROUP)
    return Quantised(Format.INT8, _halves(blocks, 0), None, blocks[:, :, 2:] ^ 128)


def _q4_0(data: np.ndarray) -> Quantised:
    blocks = data.reshape(len(data), -1, 2 + GROUP // 2)
    return Quantised(Format.INT4, _halves(blocks, 0), None, blocks[:, :, 2:])


def _q4_1(data: np.ndarray) -> Quantised:
    blocks = data.reshape(len(data), -1, 4 + GROUP // 2)
    return Quantised(Format.INT4_MIN, _halves(blocks, 0), _halves(blocks, 2), blocks[:, :, 4:])


def _fifth_bits(packed: np.ndarray) -> np.ndarray:
    """uint8[..., 32], 0 or 16, from the bits of uint8[..., 4]."""
    return np.unpackbits(packed, axis=-1, bitorder="little") << 4


def _q5_0(data: np.ndarray) -> Quantised:
    blocks = data.reshape(len(data), -1, 6 + GROUP // 2)
    scales = _halves(blocks, 0)
    numbers = from_nibbles(blocks[:, :, 6:]) | _fifth_bits(blocks[:, :, 2:6])
    return Quantised(Format.INT8_MIN, scales, scales * np.float32(-16.0), numbers)


def _q5_1(data: np.ndarray) -> Quantised:
    blocks = data.reshape(len(data), -1, 8 + GROUP // 2)
    numbers = from_nibbles(blocks[:, :, 8:]) | _fifth_bits(blocks[:, :, 4:8])
    return Quantised(Format.INT8_MIN, _halves(blocks, 0), _halves(blocks, 2), numbers)


def _k_scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales and minima, float32[outputs, groups], of the 8 groups of each block of Q4_K and Q5_K.

    Twelve bytes hold 8 scales and 8 minima of 6 bits: the first four of each in the low bits of
    bytes 0 to 7, the others' low halves in bytes 8 to 11 and their high bits on top of bytes 0 to 7.
    """
    packed = blocks[:, :, 4:16]
    low, high, mixed = packed[..., :4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([low & 63, (mixed & 15) | ((low >> 6) << 4)], axis=-1)
    minima = np.concatenate([high & 63, (mixed >> 4) | ((high >> 6) << 4)], axis=-1)
    shape = (len(blocks), -1)
    return (
        (_halves(blocks, 0)[..., None] * scales.astype(np.float32)).reshape(shape),
        (_halves(blocks, 2)[..., None] * -minima.astype(np.float32)).reshape(shape),
    )


def _k_halves(packed: np.ndarray) -> np.ndarray:
    """uint8[outputs, groups, 32] of 128 bytes a block: 32 bytes hold one group in low halves, the next in high ones."""
    pairs = packed.reshape(*packed.shape[:2], 4, GROUP)
    return np.stack([pairs & 15, pairs >> 4], axis=3).reshape(len(packed), -1, GROUP)


def _q4_k(data: np.ndarray) -> Quantised:
    blocks = data.reshape(len(data), -1, 16 + _SUPER // 2)
    scales, minima = _k_scales(blocks)
    return Quantised(Format.INT4_MIN, scales, minima, to_nibbles(_k_halves(blocks[:, :, 16:])))


def _q5_k(data: np.ndarray) -> Quantised:
    blocks = data.reshape(len(data), -1, 16 + _SUPER // 8 + _SUPER // 2)
    scales, minima = _k_scales(blocks)
    # Bit g of byte i is the fifth bit of number i of group g.
    bits = blocks[:, :, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    numbers = _k_halves(blocks[:, :, 48:]) | (bits.reshape(len(data), -1, GROUP) << 4)
    return Quantised(Format.INT8_MIN, scales, minima, numbers)


_READERS: Mapping[GGMLQuantizationType, Callable[[np.ndarray], Quantised]] = {
    GGMLQuantizationType.Q8_0: _q8_0,
    GGMLQuantizationType.Q4_0: _q4_0,
    GGMLQuantizationType.Q4_1: _q4_1,
    GGMLQuantizationType.Q5_0: _q5_0,
    GGMLQuantizationType.Q5_1: _q5_1,
    GGMLQuantizationType.Q4_K: _q4_k,
    GGMLQuantizationType.Q5_K: _q5_k,
}
