"""How rows are rounded before products with integers: groups that lie on one side of 0, and products of pairs."""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

from engine.backends.native import library
from engine.weights.packing import GROUP, Format
from tests.engine.backends.native.support.calls import add_product
from tests.engine.backends.native.support.matrices import fitted, make_matrix
from tests.engine.backends.native.support.steps import make_step

MOST_BYTE = 120  # of a rounded value; of both signs
integers = pytest.mark.parametrize("kind", [kind for kind in Format if kind.is_integer], ids=lambda kind: kind.name)


def product(x: np.ndarray, matrix) -> np.ndarray:
    addend = np.zeros((len(x), matrix.values.shape[1]), np.float32)
    return np.asarray(add_product(addend, x, make_step([0] * len(x)).rows, 0, matrix.packed))


@integers
@pytest.mark.parametrize("num_rows", [1, 3, 16, 45, 130])
def test_a_group_on_one_side_is_rounded_by_its_range(variant, kind, num_rows):
    """Half a step of the range from the smallest to the largest is the most that a value is off."""
    random, inputs = np.random.default_rng(num_rows), fitted(kind, 160)
    matrix = make_matrix(random, kind, 1, 40, inputs)
    x = random.uniform(-1, 1, (num_rows, inputs)).astype(np.float32)
    groups = x.reshape(num_rows, -1, GROUP)
    groups[:, 1] += 10
    groups[::2, 0] = 100 - groups[::2, 0]
    groups[::3, -1] -= 7
    lows, highs = groups.min(axis=2), groups.max(axis=2)
    is_moved = (highs - lows) / 2 < 0.5 * np.maximum(np.abs(highs), np.abs(lows))
    assert is_moved.any(axis=1).all()
    half_steps = np.where(is_moved, (highs - lows) / 2, np.maximum(np.abs(highs), np.abs(lows))) / MOST_BYTE / 2
    weights = matrix.values[0].astype(np.float64)
    most = half_steps @ np.abs(weights).reshape(len(weights), -1, GROUP).sum(axis=2).T
    arithmetic = np.abs(x).astype(np.float64) @ matrix.magnitudes[0].T * (inputs / GROUP + 16) * 2.0**-22
    error = np.abs(product(x, matrix) - x.astype(np.float64) @ weights.T)
    assert (error <= 1.001 * most + arithmetic).all()


@integers
def test_a_row_with_groups_on_one_side_is_the_same_alone(variant, kind):
    random, inputs = np.random.default_rng(1), fitted(kind, 27 * GROUP)
    matrix = make_matrix(random, kind, 1, 40, inputs)
    x = random.standard_normal((150, inputs)).astype(np.float32)
    groups = x.reshape(len(x), -1, GROUP)
    groups[random.random(groups.shape[:2]) < 0.1] += 9
    groups[:, 3] -= 20  # of all rows
    together = product(x, matrix)
    for count in (1, 2, 4, 7, 12, 16, 30, 77, 149):
        np.testing.assert_array_equal(product(x[-count:], matrix), together[-count:])


@integers
def test_values_that_are_nearly_the_same(variant, kind):
    """Of some groups all values are one number, of others two neighbours among float32's."""
    random, inputs = np.random.default_rng(5), fitted(kind, 96)
    matrix = make_matrix(random, kind, 1, 40, inputs)
    x = random.standard_normal((30, inputs)).astype(np.float32)
    groups = x.reshape(len(x), -1, GROUP)
    groups[:, 0] = np.float32(10.0) ** np.arange(-15, 15, dtype=np.float32)[:, None]
    groups[::2, 0, ::3] = np.nextafter(groups[::2, 0, ::3], np.float32(np.inf))
    groups[10:, 1] = -3e7
    groups[20:, 2] = 1e30
    groups[20:, 2, 5] = np.nextafter(np.float32(1e30), np.float32(0))
    together = product(x, matrix)
    want = x.astype(np.float64) @ matrix.values[0].astype(np.float64).T
    terms = np.abs(x).astype(np.float64) @ matrix.magnitudes[0].T
    assert (np.abs(together - want) < 0.02 * terms).all()
    np.testing.assert_allclose(together[20:], want[20:], atol=1e-5 * terms[20:].max())
    for row in range(len(x)):
        np.testing.assert_array_equal(product(x[row : row + 1], matrix)[0], together[row])


@integers
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_harms_no_row_beside_it(variant, kind, bad):
    random, inputs = np.random.default_rng(2), fitted(kind, 96)
    matrix = make_matrix(random, kind, 1, 40, inputs)
    x = random.standard_normal((20, inputs)).astype(np.float32)
    x[:, 32:64] += 12
    good = product(x, matrix)
    x[7, 40] = x[12, 3] = bad
    x[13, 32:64] = bad
    got = product(x, matrix)
    others = np.setdiff1d(np.arange(20), (7, 12, 13))
    np.testing.assert_array_equal(got[others], good[others])
    assert not np.isfinite(got[[7, 12, 13]]).any()


@integers
def test_the_largest_floats_stay_finite(variant, kind):
    """Values near the end of float32 are rounded without their sums and differences becoming infinite."""
    random, inputs = np.random.default_rng(3), fitted(kind, 64)
    matrix = make_matrix(random, kind, 1, 16, inputs)
    x = np.zeros((16, inputs), np.float32)
    x[:, :GROUP] = random.uniform(-1, 1, (16, GROUP)) * 1e36
    x[::2, :GROUP] = random.uniform(0.9, 1, (8, GROUP)) * 1e36
    want = x.astype(np.float64) @ matrix.values[0].astype(np.float64).T
    got = product(x, matrix)
    assert np.isfinite(got).all()
    assert np.abs(got - want).max() < 0.03 * np.abs(want).max()


def digest_of_products() -> str:
    """Of the results of all formats, of row counts that end blocks in many ways."""
    random, digest = np.random.default_rng(4), hashlib.sha256()
    for kind in Format:
        if not kind.is_integer:
            continue
        for groups in (2, 48):
            inputs = fitted(kind, groups * GROUP)
            # So many outputs that tasks have several tiles, of which the last one is alone and not whole.
            matrix = make_matrix(random, kind, 1, 584, inputs)
            x = random.standard_normal((150, inputs)).astype(np.float32)
            x[::5, :GROUP] += 5
            for count in (12, 13, 16, 17, 29, 40, 61, 64, 65, 150):
                digest.update(product(x[:count], matrix).tobytes())
    return digest.hexdigest()


def test_products_of_pairs_give_the_same_bits():
    """Of AVX-512's two ways, each in a process of its own."""
    code = "from tests.engine.backends.native.products.test_rounding import digest_of_products as d; print(d())"
    own = next(filter(library.runs_here, library.built_variants()), None)
    if own is None or not own.startswith(("avx512", "amx")):
        pytest.skip("products of pairs are for AVX-512")
    variant = own if own != "amx" else "avx512_bf16"
    digests = set()
    for wish, threads in itertools.product("01", "12"):
        environment = os.environ | {
            "EAGRE_PAIR_PRODUCTS": wish,
            "EAGRE_THREADS": threads,  # one has more blocks of rows together
            library.VARIANT_VARIABLE: variant,
        }
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        digests.add(done.stdout.strip())
    assert len(digests) == 1
    assert len(digests.pop()) == 64
