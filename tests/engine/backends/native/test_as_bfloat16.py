"""Integers that are multiplied as bfloat16, against matrices of the same numbers in bfloat16."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from engine.backends.base.operands import NormKind
from engine.backends.native.variants import EMULATION
from engine.interface.cpu import num_cores
from engine.weights.packing import TILE, Format, PackedMatrix
from tests.engine.backends.native.support.calls import NOTHING, add_product, norm_product
from tests.engine.backends.native.support.matrices import fitted, make_matrix
from tests.engine.backends.native.support.steps import make_step
from tests.packed_blocks import pack_floats, pack_stack, unpack_layers

WITHOUT_FMA = ("plain", EMULATION)  # these round scale * number before they add the minimum


def as_bfloat16(matrix: PackedMatrix) -> PackedMatrix:
    return replace(matrix, placement=replace(matrix.placement, as_bfloat16=True))


@pytest.mark.parametrize("kind", [kind for kind in Format if kind.is_integer], ids=lambda kind: kind.name)
def test_a_product_is_that_of_bfloat16_weights(variant, kind):
    """Of ragged blocks of rows, more groups than are unpacked at a time, and outputs that end within a tile."""
    random = np.random.default_rng(int(kind))
    inputs, outputs = fitted(kind, 19 * 32), 2 * TILE + 5
    matrix = make_matrix(random, kind, 1, outputs, inputs)
    wide = pack_stack([pack_floats(unpack_layers(matrix.packed)[0], Format.BFLOAT16)], Format.BFLOAT16, outputs)
    x = random.standard_normal((70, inputs)).astype(np.float32)
    addend = random.standard_normal((70, outputs)).astype(np.float32)

    def product(weights: PackedMatrix, start: int, num_rows: int) -> np.ndarray:
        rows = slice(start, start + num_rows)
        return np.asarray(add_product(addend[rows], x[rows], make_step([0] * num_rows).rows, 0, weights))

    whole = product(as_bfloat16(matrix.packed), 0, 70)
    for start, num_rows in ((0, 70), (3, 37), (9, 16), (40, 5), (69, 1)):
        got, want = product(as_bfloat16(matrix.packed), start, num_rows), product(wide, start, num_rows)
        if variant in WITHOUT_FMA:
            assert np.sqrt(((got - want) ** 2).mean()) < 1e-4 * np.sqrt((want**2).mean())
        else:
            np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(got, whole[start : start + num_rows])


def sums_of_tiles(matrix: PackedMatrix, first: int, x: np.ndarray) -> np.ndarray:
    """Of the tiles from `first` on."""
    [[place]], [count] = matrix.placement.places, matrix.placement.tiles
    place = place._replace(offset=place.offset + first * place.stride)
    placement = replace(matrix.placement, places=((place,),), tiles=(count - first,))
    part = PackedMatrix(matrix.blocks, placement, (count - first) * TILE)
    addend = np.zeros((len(x), part.num_outputs), np.float32)
    return np.asarray(add_product(addend, x, make_step([0] * len(x)).rows, 0, part))


@pytest.mark.parametrize("kind", [Format.BFLOAT16, Format.INT4_MIN, Format.Q4_K], ids=lambda kind: kind.name)
def test_neighbouring_tiles_give_the_bits_of_single_tiles(variant, kind):
    """Of an odd number of tiles, more groups than are multiplied at a time, and ragged blocks of rows."""
    num_few = 7  # tiles of a matrix that is so narrow that each task has one
    # A thread is given eight tasks or more (src/products/product.cc). Here each has four tiles, and the last has three.
    num_tiles = 4 * 8 * num_cores() + 3
    random = np.random.default_rng(int(kind))
    inputs = fitted(kind, 13 * 32)
    packed = make_matrix(random, kind, 1, num_tiles * TILE, inputs).packed
    matrix = as_bfloat16(packed) if kind.is_integer else packed
    x = random.standard_normal((37, inputs)).astype(np.float32)
    for num_rows in (37, 21, 1):
        wide, few = (sums_of_tiles(matrix, first, x[:num_rows]) for first in (0, num_tiles - num_few))
        np.testing.assert_array_equal(wide[:, -num_few * TILE :], few)


def test_integers_and_floats_stand_side_by_side(variant):
    """A leaf may have both, and rows are then made ready once, as bfloat16."""
    random = np.random.default_rng(0)
    outputs, inputs = 2 * TILE, 96
    integers, floats = (make_matrix(random, kind, 1, outputs, inputs) for kind in (Format.INT4_MIN, Format.BFLOAT16))
    x = random.standard_normal((21, inputs)).astype(np.float32)
    step, results = make_step([0] * 21), []
    for matrix in (integers, floats):
        packed = as_bfloat16(matrix.packed)
        results.append(
            np.asarray(
                norm_product(x, step.rows, 0, NOTHING, packed, norm_kind=NormKind.NONE, num_tiles=step.num_tiles)
            )
        )
    assert np.isfinite(results).all()
    places = [matrix.packed.placement.places[0][0] for matrix in (integers, floats)]
    offset = integers.packed.placement.num_bytes
    joined = PackedMatrix(
        np.concatenate([np.asarray(integers.packed.blocks), np.asarray(floats.packed.blocks)]),  # type: ignore[arg-type]
        replace(
            integers.packed.placement,
            places=((places[0], places[1]._replace(offset=offset)),), tiles=(2, 2), as_bfloat16=True,
        ),
        2 * outputs,
    )  # fmt: skip
    got = norm_product(x, step.rows, 0, NOTHING, joined, norm_kind=NormKind.NONE, num_tiles=step.num_tiles)
    np.testing.assert_array_equal(np.asarray(got), np.concatenate(results, axis=1))


def test_numbers_beyond_float32_reach_all_that_they_belong_to(variant):
    """An activation that is not finite is not lost in the rounding to bfloat16."""
    matrix = make_matrix(np.random.default_rng(0), Format.INT4, 1, TILE, 64)
    x = np.ones((2, 64), np.float32)
    x[1, 7] = np.nan
    step = make_step([0] * 2)
    got = np.asarray(
        norm_product(
            x, step.rows, 0, NOTHING, as_bfloat16(matrix.packed), norm_kind=NormKind.NONE, num_tiles=step.num_tiles
        )
    )
    assert np.isfinite(got[0]).all()
    assert np.isnan(got[1]).all()


def test_floats_are_not_said_to_be_integers(variant, monkeypatch):
    matrix = make_matrix(np.random.default_rng(0), Format.FLOAT16, 1, TILE, 64)
    step = make_step([0])
    monkeypatch.setattr(Format, "is_integer", True)
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="only integers are multiplied as bfloat16"):
        jax.block_until_ready(
            add_product(np.zeros((1, TILE), np.float32), np.zeros((1, 64), np.float32), step.rows, 0,
                        as_bfloat16(matrix.packed))
        )  # fmt: skip
