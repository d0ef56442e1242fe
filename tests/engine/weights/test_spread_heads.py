"""Heads that stand for several, and heads with zeros behind them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from engine.weights.packing import Format
from engine.weights.spread_heads import (
    fewer_heads_of_inputs,
    fewer_heads_of_outputs,
    spread_inputs,
    spread_outputs,
)


def tensor(values: np.ndarray) -> Any:
    return SimpleNamespace(shape=values.shape, num_bytes=values.nbytes, float32=lambda: values, encoded=lambda: None)


def test_outputs_of_a_head_are_repeated_scaled_and_filled_up() -> None:
    values = np.arange(8, dtype=np.float32).reshape(4, 2)  # two heads of two outputs
    spread = spread_outputs(4, 2, 3, scale=2.0)(tensor(values))
    assert spread.shape == (12, 2)
    heads = spread.float32().reshape(4, 3, 2)
    np.testing.assert_array_equal(heads[0], [[0, 2], [4, 6], [0, 0]])
    np.testing.assert_array_equal(heads[1], heads[0])
    np.testing.assert_array_equal(heads[2], [[8, 10], [12, 14], [0, 0]])
    np.testing.assert_array_equal(heads[3], heads[2])


def test_inputs_of_a_head_are_filled_up() -> None:
    values = np.arange(1, 5, dtype=np.float32).reshape(1, 4)
    spread = spread_inputs(2, 2, 3)(tensor(values))
    assert spread.shape == (1, 6)
    np.testing.assert_array_equal(spread.float32(), [[1, 2, 0, 3, 4, 0]])


def test_a_layer_with_fewer_heads_has_zeros_behind_them() -> None:
    values = np.arange(1, 9, dtype=np.float32).reshape(8, 1)  # two heads of two queries, a key and a value each
    for part, expected in enumerate(([1, 2, 3, 4, 0, 0], [5, 6, 0], [7, 8, 0])):
        taken = fewer_heads_of_outputs(3, (2, 1, 1), part)(tensor(values))
        assert taken.shape == (len(expected), 1)
        np.testing.assert_array_equal(taken.float32()[:, 0], expected)
    filled = fewer_heads_of_inputs(3, 2)(tensor(values[:4].T))
    assert filled.shape == (1, 6)
    np.testing.assert_array_equal(filled.float32(), [[1, 2, 3, 4, 0, 0]])


def test_integers_become_floats_where_a_layer_may_have_fewer_heads() -> None:
    stored = SimpleNamespace(shape=(8, 32), format=Format.INT8, encoded=lambda: "integers")
    for transform in (fewer_heads_of_outputs(2, (2, 1, 1), 0), fewer_heads_of_inputs(1, 32)):
        made = transform(stored)  # type: ignore[arg-type]
        assert (made.format, made.encoded()) == (Format.BFLOAT16, None)


def test_tensors_of_other_shapes_keep_them() -> None:
    """So that a check of shapes reports what the file has."""
    values = np.zeros((5, 2), np.float32)
    assert spread_outputs(4, 2, 3)(tensor(values)).shape == (5, 2)
    assert spread_outputs(4, 1, 1)(tensor(values)).shape == (5, 2)
    assert spread_inputs(2, 2, 3)(tensor(values)).shape == (5, 2)
    assert fewer_heads_of_outputs(1, (2, 1, 1), 0)(tensor(values)).shape == (5, 2)
    assert fewer_heads_of_outputs(1, (1, 1, 1), 0)(tensor(np.zeros((6, 2), np.float32))).shape == (6, 2)
    assert fewer_heads_of_inputs(2, 3)(tensor(values)).shape == (5, 2)
