"""Native products with the pairs of adapters beside numpy: any adapters side by side, of any rank, in both types."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from engine.backends.base.operands import Activation, LowRankPairs, NormKind
from engine.backends.base.token_layout import ADAPTER, ADAPTER_SCALE, NUM_ROW_INTS, NUM_TOKENS
from engine.backends.native import products
from engine.backends.native.matrices import PackedLayout
from engine.weights.packing import Format, PackedMatrix
from tests.engine.backends.native.support.calls import NOTHING
from tests.engine.backends.native.support.matrices import make_matrix

LAYER, INPUTS, ENDS, RANK = 1, 96, (80, 192), 32
HALVES = (96, 192)  # ends of gates and of their partners
RANKS = (32, 0, 5, 17)
# Eleven rows of one adapter, none, one that does not change this product, the others, and one with a scale of its own.
ADAPTERS = (1, 4, 1, 0, 1, 2, 3, 1, 1, 4, 1, 1, 1, 0, 1, 1, 1, 3, 0, 1)
SCALES = np.where(np.arange(len(ADAPTERS)) == 4, 0.5, 1.0).astype(np.float32)
# Of bfloat16 are what the two matrices are multiplied with, too.
TOLERANCES = {"float32": 1e-4, "bfloat16": 0.05, "uint8": 0.05}


def halves_of(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """[slots, layers, columns, inputs] and [slots, layers, rank, outputs], as adapters are read."""
    draw = np.random.default_rng(0)
    down = draw.standard_normal((len(RANKS), 2, len(ENDS), RANK, INPUTS), np.float32)
    up = draw.standard_normal((len(RANKS), 2, RANK, ENDS[-1]), np.float32) / 64
    for slot, rank in enumerate(RANKS):
        down[slot, :, :, rank:] = 0
        up[slot, :, rank:] = 0
    kind = jnp.dtype("float32" if dtype == "uint8" else dtype)
    return down.reshape(len(RANKS), 2, -1, INPUTS).astype(kind), up.astype(kind)


def pairs_of(dtype: str, ends: tuple[int, ...]) -> LowRankPairs:
    arranged = [PackedLayout().arranged_pair(*halves, dtype) for halves in zip(*halves_of(dtype), strict=True)]
    down, up = (jnp.stack(halves) for halves in zip(*arranged, strict=True))
    return LowRankPairs(down, up, jnp.asarray(RANKS, jnp.int32), ends)


def rows_of(adapters: tuple[int, ...], scales: np.ndarray) -> np.ndarray:
    rows = np.zeros((len(adapters), NUM_ROW_INTS), np.int32)
    rows[:, NUM_TOKENS], rows[:, ADAPTER] = 1, adapters
    rows[:, ADAPTER_SCALE] = scales.view(np.int32)
    return rows


def added(x: np.ndarray, dtype: str, ends: tuple[int, ...]) -> np.ndarray:
    """float64: what the adapters add to products of rows."""
    down, up = (half[:, LAYER].astype(np.float64) for half in halves_of(dtype))
    total = np.zeros((len(x), ENDS[-1]))
    for row, adapter in enumerate(ADAPTERS):
        start = 0
        for part, end in enumerate(ends):
            if adapter:
                inner = SCALES[row] * (down[adapter - 1, part * RANK : (part + 1) * RANK] @ x[row])
                total[row, start:end] = inner @ up[adapter - 1, :, start:end]
            start = end
    return total


def product(x: np.ndarray, rows: np.ndarray, weights: PackedMatrix, pairs: LowRankPairs | None) -> np.ndarray:
    addend = np.ones((len(x), ENDS[-1]), np.float32)
    return np.asarray(products.add_product(
        addend, x, rows, np.int32(LAYER), weights, NOTHING, scale=0.5, num_tiles=0, pairs=pairs
    ))  # fmt: skip


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_every_row_has_the_product_of_its_own_adapter(native: str, dtype: str) -> None:
    pairs, count = pairs_of(dtype, ENDS), len(ADAPTERS)
    x = np.random.default_rng(1).standard_normal((count, INPUTS), np.float32)
    matrix = make_matrix(np.random.default_rng(2), Format.FLOAT32, 2, ENDS[-1], INPUTS)
    rows = rows_of(ADAPTERS, SCALES)
    got = product(x, rows, matrix.packed, pairs)
    expected = 1 + 0.5 * (x @ matrix.values[LAYER].T + added(x, dtype, ENDS))
    np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCES[dtype])
    without = np.array(ADAPTERS) == 0
    np.testing.assert_array_equal(got[without], product(x, rows, matrix.packed, None)[without])
    for own in ([0], [9], [4, 6], list(range(10, 20))):
        alone = product(x[own], rows[own], matrix.packed, pairs)
        np.testing.assert_array_equal(alone, got[own])


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_gates_and_their_partners_have_adapters_of_their_own(native: str, dtype: str) -> None:
    x = np.random.default_rng(1).standard_normal((len(ADAPTERS), INPUTS), np.float32)
    matrix = make_matrix(np.random.default_rng(2), Format.FLOAT32, 2, ENDS[-1], INPUTS, is_gated=True)
    got = products.norm_product(
        x, rows_of(ADAPTERS, SCALES), np.int32(LAYER), NOTHING, NOTHING, matrix.packed, NOTHING,
        norm_kind=NormKind.NONE, epsilon=0.0, activation=Activation.RELU, is_gated=True, num_tiles=0,
        pairs=pairs_of(dtype, HALVES),
    )  # fmt: skip
    gates, partners = np.split(x @ matrix.values[LAYER].T + added(x, dtype, HALVES), 2, axis=1)
    expected = np.maximum(gates, 0) * partners
    np.testing.assert_allclose(got, expected, rtol=0, atol=50 * TOLERANCES[dtype])


def test_rows_of_int8_weights_are_packed_for_adapters_too(native: str) -> None:
    """More rows than threads share, in a tile of many tokens, after a norm: the adapters are given the normed rows."""
    count, num_inputs, num_outputs = 150, 64, 64
    draw = np.random.default_rng(3)
    x = draw.standard_normal((count, num_inputs), np.float32)
    matrix = make_matrix(draw, Format.INT8, 1, num_outputs, num_inputs)
    down = draw.standard_normal((1, 16, num_inputs), np.float32)
    up = draw.standard_normal((1, 16, num_outputs), np.float32)
    halves = (jnp.asarray(half[None]) for half in PackedLayout().arranged_pair(down, up, "float32"))
    pairs = LowRankPairs(*halves, jnp.full(1, 16, jnp.int32), (num_outputs,))
    rows = rows_of((1,), np.full(1, 0.25, np.float32))
    rows[:, NUM_TOKENS] = count
    norm = draw.uniform(0.5, 2, (1, num_inputs)).astype(np.float32)

    def multiply(own: LowRankPairs | None) -> np.ndarray:
        return np.asarray(products.norm_product(
            x, rows, np.int32(0), norm, NOTHING, matrix.packed, NOTHING,
            norm_kind=NormKind.RMS, epsilon=0.0, activation=Activation.NONE, is_gated=False, num_tiles=1, pairs=own,
        ))  # fmt: skip

    normed = norm * x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True))
    expected = 0.25 * (normed @ down[0].T @ up[0])
    np.testing.assert_allclose(multiply(pairs) - multiply(None), expected, rtol=0, atol=1e-3)
