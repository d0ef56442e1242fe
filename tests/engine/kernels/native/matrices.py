"""Random weight matrices in every format, with what they stand for in float64."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from engine.weights.packing import GROUP, Format, PackedMatrix, Quantised, pack_floats, pack_quantised, to_nibbles
from tests.packed_blocks import pack_stack

FLOAT_TYPES = {Format.FLOAT32: np.float32, Format.BFLOAT16: jnp.bfloat16}


@dataclass(frozen=True)
class Matrices:
    """A stack of matrices of equal shape."""

    packed: PackedMatrix
    values: np.ndarray  # float64[num_layers, outputs, inputs]
    magnitudes: np.ndarray  # of the terms that a weight is the sum of, which bound the rounding errors


def make_matrix(random: np.random.Generator, kind: Format, num_layers: int, outputs: int, inputs: int) -> Matrices:
    """Weights of about the standard deviation 1; numbers are of their whole range."""
    layers = [_make_layer(random, kind, outputs, inputs) for _ in range(num_layers)]
    packed, values, magnitudes = zip(*layers, strict=True)
    return Matrices(pack_stack(list(packed), kind, outputs), np.stack(values), np.stack(magnitudes))


def _make_layer(
    random: np.random.Generator, kind: Format, outputs: int, inputs: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if not kind.is_integer:
        weights = random.standard_normal((outputs, inputs)).astype(np.float32)
        values = weights.astype(FLOAT_TYPES[kind]).astype(np.float64)
        return pack_floats(weights, kind), values, np.abs(values)
    groups = inputs // GROUP
    largest = 15 if kind.is_nibbles else 255
    numbers = random.integers(0, largest + 1, (outputs, groups, GROUP), np.uint8)
    # Uniform numbers deviate by their range over the root of 12.
    scales = (random.uniform(0.5, 1.5, (outputs, groups)) * 12**0.5 / largest).astype(np.float16)
    minima = (-scales * random.uniform(0.4, 0.6, scales.shape) * largest).astype(np.float16)
    quantised = Quantised(
        kind,
        scales.astype(np.float32),
        minima.astype(np.float32) if kind.has_minima else None,
        to_nibbles(numbers) if kind.is_nibbles else numbers,
    )
    values, magnitudes = dequantise(kind, scales, minima, numbers)
    return pack_quantised(quantised), values, magnitudes


def dequantise(
    kind: Format, scales: np.ndarray, minima: np.ndarray, numbers: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """float64[outputs, inputs] of uint8[outputs, groups, GROUP], and the magnitudes of the terms."""
    scaled = numbers * scales.astype(np.float64)[..., None]
    if kind.has_minima:
        offset = np.broadcast_to(minima.astype(np.float64)[..., None], scaled.shape)
    else:
        offset = np.broadcast_to(-scales.astype(np.float64)[..., None] * (8 if kind.is_nibbles else 128), scaled.shape)
    flat = (len(numbers), -1)
    return (scaled + offset).reshape(flat), (np.abs(scaled) + np.abs(offset)).reshape(flat)
