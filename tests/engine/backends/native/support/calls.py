"""Native products with everything switched off that a call does not name."""

from __future__ import annotations

import jax
import numpy as np

from engine.backends.base.operands import Activation, NormKind
from engine.backends.native import products
from engine.weights.packing import PackedMatrix

EPSILON = 1e-5
NOTHING = np.zeros(0, np.float32)


def norm_product(
    x, rows, layer: int, norm, weights: PackedMatrix, *, num_tiles: int = 0, norm_bias=NOTHING, bias=NOTHING,
    norm_kind: int = NormKind.RMS, epsilon: float = EPSILON, activation: int = Activation.NONE, is_gated: bool = False,
) -> jax.Array:  # fmt: skip
    return products.norm_product(
        x, rows, np.int32(layer), norm, norm_bias, weights, bias,
        norm_kind=norm_kind, epsilon=epsilon, activation=activation, is_gated=is_gated, num_tiles=num_tiles,
    )  # fmt: skip


def add_product(addend, x, rows, layer: int, weights: PackedMatrix, *, bias=NOTHING, scale: float = 1.0) -> jax.Array:
    return products.add_product(addend, x, rows, np.int32(layer), weights, bias, scale=scale, num_tiles=0)


def head_product(
    x, sampled, norm, weights: PackedMatrix, *, norm_bias=NOTHING, bias=NOTHING, norm_kind: int = NormKind.RMS,
    scale: float = 1.0, softcap: float = 0.0,
) -> jax.Array:  # fmt: skip
    return products.head_product(
        x, sampled, norm, norm_bias, weights,
        norm_kind=norm_kind, epsilon=EPSILON, scale=scale, softcap=softcap, bias=bias,
    )  # fmt: skip
