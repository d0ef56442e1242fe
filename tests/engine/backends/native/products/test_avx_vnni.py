"""The variant with the dot products of AVX-VNNI, against the one that it differs from in them alone."""

from __future__ import annotations

import numpy as np
import pytest

from engine.backends.native import library
from engine.weights.packing import TILE, Format
from tests.engine.backends.native.support.attention_cases import Shape, angles, fill, make_pages, make_table, run
from tests.engine.backends.native.support.calls import add_product
from tests.engine.backends.native.support.matrices import fitted, make_matrix
from tests.engine.backends.native.support.steps import make_step
from tests.native_variants import loaded

PAIR = ("avx_vnni", "avx2")


@pytest.fixture(scope="module", autouse=True)
def _pair() -> None:
    for name in PAIR:
        if name not in library.built_variants() or not library.runs_here(name):
            pytest.skip(f"{name} was not built or does not run here")


@pytest.mark.parametrize("kind", list(Format), ids=lambda kind: kind.name)
def test_products_have_the_same_bits(kind):
    """Of every count of rows that has a kernel, several blocks of rows, and more groups than are unpacked at a time."""
    random = np.random.default_rng(int(kind))
    inputs, outputs = fitted(kind, 27 * 32), 2 * TILE + 5
    matrix = make_matrix(random, kind, 1, outputs, inputs)
    x = random.standard_normal((43, inputs)).astype(np.float32)
    x[::3, 32:64] += 8.0  # groups that get an offset
    x[:, 64] *= 1000.0  # groups whose largest value is rounded to the largest byte
    addend = random.standard_normal((43, outputs)).astype(np.float32)
    for num_rows in (43, 23, 16, 9, 5, 4, 2, 1):
        results = []
        for variant in PAIR:
            with loaded(variant):
                product = add_product(addend[:num_rows], x[:num_rows], make_step([0] * num_rows).rows, 0, matrix.packed)
                results.append(np.asarray(product))
        np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("kind", ["bfloat16", "int16", "int8"])
@pytest.mark.parametrize("page_size", [16, 32])
def test_attention_has_the_same_bits(kind, page_size):
    shape, results = Shape(kind, page_size), []
    for variant in PAIR:
        with loaded(variant):
            random = np.random.default_rng(0)
            step = make_step([700, 30, 1], [(100, 24)], 24)
            table, num_pages = make_table(random, step, shape.page_size)
            kv = fill(random, make_pages(random, shape, num_pages), 0, step, table)
            qkv = random.standard_normal((step.num_tokens, shape.num_vectors * shape.head_dim)).astype(np.float32)
            results.append(run(shape, qkv, angles(random, step.num_tokens, shape), step, table, 0, kv)[0])
    np.testing.assert_array_equal(*results)
