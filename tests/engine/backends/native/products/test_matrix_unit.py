"""Products on the matrix unit, of real tile registers and of emulated ones, against vector instructions."""

from __future__ import annotations

import numpy as np
import pytest

from engine.backends.native import library
from engine.backends.native.variants import EMULATION
from engine.weights.packing import TILE, Format
from tests.engine.backends.native.support.calls import add_product
from tests.engine.backends.native.support.matrices import fitted, make_matrix
from tests.engine.backends.native.support.steps import make_step
from tests.native_variants import loaded

BASES = {"amx": "avx512_bf16", EMULATION: "plain"}  # variants that differ in the use of the matrix unit alone


@pytest.fixture(scope="module", params=BASES)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A variant with the matrix unit, and the one that it differs from."""
    names = request.param, BASES[request.param]
    for name in names:
        if name not in library.built_variants() or not library.runs_here(name):
            pytest.skip(f"{name} was not built or does not run here")
    return names


@pytest.mark.parametrize("kind", [kind for kind in Format if kind.is_integer], ids=lambda kind: kind.name)
def test_integers_give_the_bits_of_vector_instructions(pair, kind):
    """Of ragged blocks of rows, more groups than are unpacked at a time, and outputs that end within a tile."""
    random = np.random.default_rng(int(kind))
    inputs, outputs = fitted(kind, 27 * 32), 2 * TILE + 5
    matrix = make_matrix(random, kind, 1, outputs, inputs)
    x = random.standard_normal((43, inputs)).astype(np.float32)
    x[::3, 32:64] += 8.0  # groups that get an offset
    addend = random.standard_normal((43, outputs)).astype(np.float32)
    for num_rows in (43, 23, 16, 9, 5, 4):
        results = []
        for variant in pair:
            with loaded(variant):
                product = add_product(addend[:num_rows], x[:num_rows], make_step([0] * num_rows).rows, 0, matrix.packed)
                results.append(np.asarray(product))
        np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("kind", [Format.INT4_MIN, Format.INT8], ids=lambda kind: kind.name)
@pytest.mark.parametrize("num_groups", [1, 2, 3, 4, 5, 25])
def test_any_number_of_groups_is_added_up_once(pair, kind, num_groups):
    """Groups are gone through two at a time, up to 24 together, and the last of them in another way."""
    random = np.random.default_rng(num_groups)
    matrix = make_matrix(random, kind, 1, TILE, num_groups * 32)
    x = random.standard_normal((21, num_groups * 32)).astype(np.float32)
    addend = np.zeros((21, TILE), np.float32)
    results = []
    for variant in pair:
        with loaded(variant):
            results.append(np.asarray(add_product(addend, x, make_step([0] * 21).rows, 0, matrix.packed)))
    np.testing.assert_array_equal(*results)


def test_the_emulation_gives_the_bits_of_the_instructions():
    """Of bfloat16, whose sums round; those of integers are exact."""
    random = np.random.default_rng(0)
    matrix = make_matrix(random, Format.BFLOAT16, 1, 2 * TILE + 5, 27 * 32)
    x = random.standard_normal((70, 27 * 32)).astype(np.float32)
    results = []
    for variant in BASES:
        if variant not in library.built_variants() or not library.runs_here(variant):
            pytest.skip(f"{variant} was not built or does not run here")
        with loaded(variant):
            addend = np.zeros((70, 2 * TILE + 5), np.float32)
            results.append(np.asarray(add_product(addend, x, make_step([0] * 70).rows, 0, matrix.packed)))
    np.testing.assert_array_equal(*results)
