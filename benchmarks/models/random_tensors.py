"""Random tensors, as files hold them."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quant_shape_to_byte_shape

_Q4_K_SPREAD = 255.0  # standard deviation of a Q4_K weight with random scales, in units of its block's scale
_Q6_K_SPREAD = 170.0  # the same of a Q6_K weight with scales from -16 to 15


def stored_shape(shape: tuple[int, ...], kind: GGMLQuantizationType) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and the type of the array that holds a tensor: of a quantised one, the last axis counts bytes."""
    if kind is GGMLQuantizationType.F32:
        return shape, np.dtype(np.float32)
    return quant_shape_to_byte_shape(shape, kind), np.dtype(np.uint8)


def random_tensor(random: np.random.Generator, shape: tuple[int, ...], kind: GGMLQuantizationType) -> np.ndarray:
    """Weights whose products keep the size of what they multiply; a vector's are 1. Its array is as `stored_shape`.

    The numbers within a block are random bits; only the scale of a block is chosen.

    Raises:
        ValueError: the format is none of F32, Q4_K and Q6_K.
    """
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    deviation = shape[-1] ** -0.5
    if kind is GGMLQuantizationType.F32:
        return random.standard_normal(shape, np.float32) * np.float32(deviation)
    rows, _ = stored_shape(shape, kind)
    blocks = random.integers(0, 256, rows, np.uint8).reshape(-1, GGML_QUANT_SIZES[kind][1])
    match kind:
        case GGMLQuantizationType.Q4_K:  # scale and scale of the minima, eight scales and minima of 6 bits, numbers
            scale = np.float16(deviation / _Q4_K_SPREAD)
            # 7.5 is the mean of a number of four bits, so that the mean of the weights is 0.
            blocks[:, :4] = np.array([scale, np.float16(7.5 * scale)]).view(np.uint8)
        case GGMLQuantizationType.Q6_K:  # numbers, sixteen scales of 8 bits, the scale of these
            blocks[:, 192:208] = (blocks[:, 192:208] % 32 - 16).view(np.uint8)
            blocks[:, 208:] = np.array([deviation / _Q6_K_SPREAD], np.float16).view(np.uint8)
        case _:
            raise ValueError(f"{kind.name} is not written; F32, Q4_K and Q6_K are")
    return blocks.reshape(rows)
