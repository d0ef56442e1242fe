"""Random weight matrices in every format, with what they stand for in float64."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from engine.weights.encodings import Encoding
from engine.weights.packing import GROUP, Format, PackedMatrix, Quantised, pack_quantised, to_nibbles
from tests.gguf_tensors import random_rows
from tests.packed_blocks import has_minima, pack, pack_floats, pack_stack

FLOAT_TYPES = {Format.FLOAT32: np.float32, Format.BFLOAT16: jnp.bfloat16, Format.FLOAT16: np.float16}


@dataclass(frozen=True)
class Matrices:
    """A stack of matrices of equal shape."""

    packed: PackedMatrix
    values: np.ndarray  # float64[num_layers, outputs, inputs]
    magnitudes: np.ndarray  # of the terms that a weight is the sum of, which bound the rounding errors


def make_matrix(
    random: np.random.Generator, kind: Format, num_layers: int, outputs: int, inputs: int, *, is_gated: bool = False
) -> Matrices:
    """Weights of about the standard deviation 1; numbers are of their whole range.

    Args:
        is_gated: whether the first half of the outputs are gates; each half is then padded to whole tiles.
    """
    layers = [_make_layer(random, kind, outputs, inputs) for _ in range(num_layers)]
    packed, values, magnitudes = zip(*layers, strict=True)
    parts = [np.split(tiles, 2) for tiles in packed] if is_gated else packed
    stack = pack_stack(parts, kind, outputs, is_gated=is_gated)
    return Matrices(stack, np.stack(values), np.stack(magnitudes))


def fitted(kind: Format, inputs: int) -> int:
    """At least so many inputs, as many as the format takes."""
    return -(-inputs // kind.input_multiple) * kind.input_multiple


def _make_layer(
    random: np.random.Generator, kind: Format, outputs: int, inputs: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if kind.is_k or kind in (Format.MXFP4, Format.IQ4_NL):
        rows = random_rows(random, GGMLQuantizationType[kind.name], outputs, inputs)
        values = dequantize(rows, GGMLQuantizationType[kind.name]).astype(np.float64)
        # Where there are minima, a weight may be much smaller than the two terms that it is the sum of.
        magnitudes = np.abs(values) + (8.0 if has_minima(kind) else 0.0)
        return pack(Encoding[kind.name], rows, kind, inputs), values, magnitudes
    if not kind.is_integer:
        weights = random.standard_normal((outputs, inputs)).astype(np.float32)
        values = weights.astype(FLOAT_TYPES[kind]).astype(np.float64)
        return pack_floats(weights, kind), values, np.abs(values)
    groups = inputs // GROUP
    largest = 15 if kind.is_nibbles else 255
    numbers = random.integers(0, largest + 1, (outputs, groups, GROUP), np.uint8)
    # Uniform numbers deviate by their range over the root of 12.
    scales = (random.uniform(0.5, 1.5, (outputs, groups)) * 12**0.5 / largest).astype(np.float16)
    zero_points = (random.uniform(0.4, 0.6, scales.shape) * largest).astype(np.float16)
    stored = minima = -scales * zero_points
    if kind.has_zero_points:
        stored = -np.rint(zero_points)
        minima = scales.astype(np.float32) * stored
    quantised = Quantised(
        kind,
        scales.astype(np.float32),
        stored.astype(np.float32) if has_minima(kind) else None,
        to_nibbles(numbers) if kind.is_nibbles else numbers,
    )
    values, magnitudes = dequantise(kind, scales, minima, numbers)
    return pack_quantised(quantised), values, magnitudes


def dequantise(
    kind: Format, scales: np.ndarray, minima: np.ndarray, numbers: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """float64[outputs, inputs] of uint8[outputs, groups, GROUP], and the magnitudes of the terms."""
    scaled = numbers * scales.astype(np.float64)[..., None]
    if has_minima(kind):
        offset = np.broadcast_to(minima.astype(np.float64)[..., None], scaled.shape)
    else:
        offset = np.broadcast_to(-scales.astype(np.float64)[..., None] * (8 if kind.is_nibbles else 128), scaled.shape)
    flat = (len(numbers), -1)
    return (scaled + offset).reshape(flat), (np.abs(scaled) + np.abs(offset)).reshape(flat)
