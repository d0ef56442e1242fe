"""Ragged paged attention against float64, over random rows, page layouts, heads and kinds of pages."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from cache.storage import KVPages
from engine.backends.native.attention import attention
from engine.backends.native.variants import EMULATION
from tests.engine.backends.native.support.attention_cases import (
    BFLOAT16_UNIT,
    EPSILON,
    NUM_LAYERS,
    Shape,
    angles,
    as_in_pages,
    assert_untouched,
    assert_written,
    attend,
    by_token,
    context,
    fill,
    in_blocks,
    in_rows,
    make_pages,
    make_table,
    rotated,
    run,
    scales_of,
)
from tests.engine.backends.native.support.steps import Step, make_step

KINDS = ("float32", "bfloat16", "int16", "int8")
WIDENING = ("amx", EMULATION, "neon")  # variants that multiply int8 as bfloat16
PLAIN = Shape(group=3, head_dim=64)
WINDOW = replace(PLAIN, window=600)
EVERYTHING = Shape(
    group=3, head_dim=64, window=600, rotary_dim=24, scale=0.2, softcap=3.0, norm="all", has_sinks=True, slopes="exact"
)
SHAPES = [
    Shape(),
    Shape(group=1, head_dim=16, page_size=32),
    Shape(group=8, head_dim=64, num_kv_heads=1, page_size=7),
    Shape(group=3, head_dim=64, num_kv_heads=3, page_size=32, window=130),
    Shape(group=8, head_dim=128, num_kv_heads=1, window=1),
    Shape(group=1, head_dim=80, page_size=5, window=700),
    Shape(scale=0.25),
    Shape(softcap=1.5),
    Shape(has_sinks=True),
    Shape(slopes="exact", rotary_dim=0),
    Shape(slopes="rounded", group=1, num_kv_heads=5, head_dim=64, rotary_dim=0),
    Shape(rotary_dim=8),
    Shape(group=2, head_dim=80, rotary_dim=50),
    Shape(is_rotated=False),
    Shape(rotary_dim=0),
    Shape(norm="each"),
    Shape(norm="all", num_kv_heads=3, head_dim=48),
    Shape(group=1, head_dim=256, num_kv_heads=1, norm="each", window=64, is_rotated=False),
    EVERYTHING,
]


def random_rows(random: np.random.Generator, longest: int) -> Step:
    """A few single rows and tiles; contexts short and long, some rows padding."""

    def start() -> int:
        return int(random.integers(0, random.choice([2, 70, longest])))

    singles = [start() if random.random() < 0.8 else -1 for _ in range(random.integers(1, 5))]
    tiles = [(start(), int(random.integers(0, 25))) for _ in range(random.integers(0, 4))]
    return make_step(singles, tiles, 24)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("seed", [0])
def test_it_equals_attention_in_float64(variant, kind, shape, seed):
    random = np.random.default_rng([seed, len(kind)])
    shape = replace(shape, kind=kind)
    step = random_rows(random, 1500)
    layer = int(random.integers(NUM_LAYERS))
    table, num_pages = make_table(random, step, shape.page_size)
    kv = fill(random, make_pages(random, shape, num_pages), layer, step, table)
    qkv = random.standard_normal((step.num_tokens, shape.num_vectors, shape.head_dim)).astype(np.float32)
    rotations = angles(random, step.num_tokens, shape)
    padding = np.setdiff1d(np.arange(step.num_tokens), step.real())
    qkv[padding] = np.nan

    out, after = run(shape, qkv.reshape(step.num_tokens, -1), rotations, step, table, layer, kv)

    queries = rotated(qkv[:, : shape.num_heads], rotations, shape)
    keys = rotated(qkv[:, shape.num_heads : -shape.num_kv_heads], rotations, shape)
    values = qkv[:, -shape.num_kv_heads :].astype(np.float64)
    written, errors, results = set(), [], []
    for row, token, position in step.tokens():
        page, offset = int(table[row, position // shape.page_size]), position % shape.page_size
        written.add((page, offset))
        assert_written(shape, keys[token], values[token], after, layer, page, offset)
    for row, (start, count, _) in enumerate(step.rows):
        if count == 0:
            continue
        all_keys, all_values = context(after, layer, table[row], start + count)
        real = slice(step.first_token(row), step.first_token(row) + count)
        scales = scales_of(after, layer, table[row], start + count)
        want, bound = attend(as_in_pages(queries[real], shape), start, all_keys, all_values, scales, shape)
        error = np.abs(as_in_pages(out[real], shape) - want)
        assert (error <= bound).all(), f"row {row} is off by {(error / bound).max()} bounds"
        errors.append(error)
        results.append(want)
    assert_untouched(kv, after, layer, written)
    typical = np.sqrt((np.concatenate(errors) ** 2).mean() / (np.concatenate(results) ** 2).mean()) if errors else 0.0
    assert typical < {"float32": 2e-6, "int8": 1e-2}.get(kind, 6e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "shape", [PLAIN, replace(PLAIN, window=600), EVERYTHING], ids=["plain", "window", "everything"]
)
@pytest.mark.parametrize("start", [0, 61, 507, 1020])  # before the ends of a block of keys and of a split
def test_a_token_is_the_same_in_a_tile_in_other_chunks_and_alone(variant, kind, shape, start):
    random = np.random.default_rng(start)
    shape = replace(shape, kind=kind)
    num_tokens, tile = 21, 24
    whole = make_step([-1], [(start, num_tokens), (0, 0)], tile)
    table, num_pages = make_table(random, whole, shape.page_size)
    table[[0, 2]] = table[1]
    before = fill(random, make_pages(random, shape, num_pages), 0, whole, table)
    qkv = random.standard_normal((num_tokens, shape.num_vectors * shape.head_dim)).astype(np.float32)
    rotations = angles(random, num_tokens, shape)

    def run_steps(steps: list[tuple[Step, slice]]) -> tuple[np.ndarray, KVPages]:
        kv, outputs = before, []
        for step, which in steps:
            real = step.real()
            padded_qkv = np.full((step.num_tokens, qkv.shape[1]), np.nan, np.float32)
            padded_rotations = np.zeros((step.num_tokens, shape.num_rotated), np.float32)
            padded_qkv[real], padded_rotations[real] = qkv[which], rotations[which]
            out, kv = run(shape, padded_qkv, padded_rotations, step, table, 0, kv)
            outputs.append(out[real])
        return np.concatenate(outputs), kv

    expected, kv = run_steps([(whole, slice(0, num_tokens))])
    assert np.isfinite(expected).all()
    chunks = [(0, 5), (5, 6), (6, 19), (19, 21)]
    ways = [
        [(make_step([-1], [(start + a, b - a), (0, 0)], tile), slice(a, b)) for a, b in chunks],
        [(make_step([-1], [(start, 13), (start + 13, 8)], tile), slice(0, 21))],  # two tiles of one sequence
        [(make_step([start + i], [(0, 0), (0, 0)], tile), slice(i, i + 1)) for i in range(num_tokens)],
    ]
    for steps in ways:
        out, pages = run_steps(steps)
        np.testing.assert_array_equal(out, expected)
        assert pages.data.tobytes() == kv.data.tobytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [PLAIN, WINDOW], ids=["plain", "window"])
def test_a_long_chunk_is_the_same_as_its_tiles_one_by_one(variant, kind, shape):
    """So many tokens are shared out among threads in other portions than a few."""
    random = np.random.default_rng(4)
    shape, tile, start = replace(shape, kind=kind, page_size=32), 64, 1000
    whole = make_step([], [(start + tile * i, tile) for i in range(4)], tile)
    table, num_pages = make_table(random, whole, shape.page_size)
    table[:] = table[-1]
    kv = fill(random, make_pages(random, shape, num_pages), 0, whole, table)
    qkv = random.standard_normal((whole.num_tokens, shape.num_vectors * shape.head_dim)).astype(np.float32)
    rotations = angles(random, whole.num_tokens, shape)
    together, _ = run(shape, qkv, rotations, whole, table, 0, kv)
    for row in range(4):
        step, which = make_step([], [(start + tile * row, tile)], tile), slice(row * tile, (row + 1) * tile)
        alone, kv = run(shape, qkv[which], rotations[which], step, table[:1], 0, kv)
        np.testing.assert_array_equal(alone, together[which])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [Shape(head_dim=48), EVERYTHING], ids=["plain", "everything"])
def test_neighbours_and_padding_change_nothing(variant, kind, shape):
    random = np.random.default_rng(1)
    shape = replace(shape, kind=kind)
    step = make_step([40, 700, 3, 1300], [(100, 9), (0, 24)], 24)
    table, num_pages = make_table(random, step, shape.page_size)
    kv = fill(random, make_pages(random, shape, num_pages), 1, step, table)
    qkv = random.standard_normal((step.num_tokens, shape.num_vectors * shape.head_dim)).astype(np.float32)
    rotations = angles(random, step.num_tokens, shape)
    together, _ = run(shape, qkv, rotations, step, table, 1, kv)
    for row in range(len(step.rows)):
        rows = step.rows.copy()
        rows[np.arange(len(rows)) != row, 1] = 0
        alone, _ = run(shape, qkv, rotations, replace(step, rows=rows), table, 1, kv)
        real = slice(step.first_token(row), step.first_token(row) + step.rows[row, 1])
        np.testing.assert_array_equal(alone[real], together[real])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "shape",
    [
        Shape(group=3, head_dim=64, num_kv_heads=3, page_size=32),
        Shape(group=6, head_dim=128, num_kv_heads=2, page_size=64),
        Shape(group=1, head_dim=16, num_kv_heads=7, page_size=32, window=70, slopes="exact", has_sinks=True),
        Shape(group=2, head_dim=32, num_kv_heads=5, page_size=32, softcap=2.0, slopes="rounded", rotary_dim=0),
    ],
    ids=str,
)
def test_heads_of_a_row_among_many_rows_are_as_those_of_a_row_alone(variant, kind, shape):
    """Where rows are many, one thread attends with all heads of a row; where they are few, with one head."""
    random = np.random.default_rng(6)
    shape = replace(shape, kind=kind)
    step = make_step([0, 7, 31, 32, 62, 63, 64, 95, 127, 200, 511, 512, 600, 1100], [], 1)
    table, num_pages = make_table(random, step, shape.page_size)
    kv = fill(random, make_pages(random, shape, num_pages), 0, step, table)
    qkv = random.standard_normal((step.num_tokens, shape.num_vectors * shape.head_dim)).astype(np.float32)
    rotations = angles(random, step.num_tokens, shape)
    together, _ = run(shape, qkv, rotations, step, table, 0, kv)
    for row in range(len(step.rows)):
        rows = step.rows.copy()
        rows[np.arange(len(rows)) != row, 1] = 0
        alone, _ = run(shape, qkv, rotations, replace(step, rows=rows), table, 0, kv)
        np.testing.assert_array_equal(alone[row], together[row])
        assert np.isfinite(alone[row]).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("page_size", [16, 32, 24, 96])  # the last two divide no split
@pytest.mark.parametrize("seed", range(3))
def test_rows_that_share_pages_get_what_they_get_alone(variant, kind, page_size, seed):
    """Prefixes in common of any length, in a tree, with whole rows alike, rows within them and strangers between."""
    random = np.random.default_rng(seed)
    shape = Shape(kind=kind, page_size=page_size)
    starts = [int(start) for start in random.integers(0, 1100, 9)] + [900, 900, 127, 128, 255]
    step = make_step([*starts, -1], [(int(random.integers(0, 600)), 20)], 20)
    table, num_pages = make_table(random, step, page_size)
    kv = fill(random, make_pages(random, shape, num_pages), 0, step, table)
    num_shared = 0
    for row in range(1, len(starts)):
        other = int(random.integers(0, row))
        most = min(starts[row], starts[other]) // page_size  # pages before those that this step writes
        shared = int(random.integers(most // 2, most + 1))
        table[row, :shared] = table[other, :shared]
        num_shared += shared
    assert num_shared * page_size > 1000
    qkv = random.standard_normal((step.num_tokens, shape.num_vectors * shape.head_dim)).astype(np.float32)
    rotations = angles(random, step.num_tokens, shape)
    together, _ = run(shape, qkv, rotations, step, table, 0, kv)
    for row in range(len(step.rows)):
        rows = step.rows.copy()
        rows[np.arange(len(rows)) != row, 1] = 0
        alone, _ = run(shape, qkv, rotations, replace(step, rows=rows), table, 0, kv)
        real = slice(step.first_token(row), step.first_token(row) + step.rows[row, 1])
        np.testing.assert_array_equal(alone[real], together[real])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "shape",
    [
        Shape(page_size=32),
        Shape(page_size=32, slopes="exact"),
        Shape(group=1, head_dim=16, num_kv_heads=3, page_size=128),
        WINDOW,
        EVERYTHING,
    ],
    ids=str,
)
def test_neighbours_with_a_long_beginning_in_common_get_what_they_get_alone(variant, kind, shape):
    """As many as attend together, and more; of several lengths, with strangers between, across the ends of splits."""
    random = np.random.default_rng(5)
    shape = replace(shape, kind=kind)
    families = [(1000, [1030, 1000, 1100, 1024, 1535, 1040]), (70, [70, 400, 71]), (0, [300, -1]), (640, [700] * 12)]
    starts = [start for _, family in families for start in family]
    step = make_step(starts, [(3, 5)], 20)
    table, num_pages = make_table(random, step, shape.page_size)
    kv = fill(random, make_pages(random, shape, num_pages), 0, step, table)
    row = 0
    for num_shared, family in families:
        table[row : row + len(family), : num_shared // shape.page_size] = table[row, : num_shared // shape.page_size]
        row += len(family)
    qkv = random.standard_normal((step.num_tokens, shape.num_vectors * shape.head_dim)).astype(np.float32)
    rotations = angles(random, step.num_tokens, shape)
    together, _ = run(shape, qkv, rotations, step, table, 0, kv)
    for row in np.flatnonzero(step.rows[:, 1]):
        rows = step.rows.copy()
        rows[np.arange(len(rows)) != row, 1] = 0
        alone, _ = run(shape, qkv, rotations, replace(step, rows=rows), table, 0, kv)
        real = slice(step.first_token(row), step.first_token(row) + step.rows[row, 1])
        np.testing.assert_array_equal(alone[real], together[real])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_number_stays_in_its_row(variant, kind):
    random = np.random.default_rng(2)
    shape = Shape(kind=kind)
    step = make_step([5, 5, 5])
    table, num_pages = make_table(random, step, shape.page_size)
    kv = fill(random, make_pages(random, shape, num_pages), 0, step, table)
    qkv = random.standard_normal((3, shape.num_vectors * shape.head_dim)).astype(np.float32)
    qkv[1] = np.nan
    out, _ = run(shape, qkv, angles(random, 3, shape), step, table, 0, kv)
    assert np.isnan(out[1]).all()
    assert np.isfinite(out[[0, 2]]).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1e4, 1e7])
def test_scores_far_apart(variant, kind, size):
    """One key takes all of the weight, and the rest falls below the smallest number.

    Where scores are so large that float32 holds whole numbers alone, 255 would be rounded to the power of two 256.
    """
    random = np.random.default_rng(3)
    shape = Shape(kind=kind)
    step = make_step([600, 90])
    table, num_pages = make_table(random, step, shape.page_size)
    kv = fill(random, make_pages(random, shape, num_pages), 0, step, table)
    qkv = random.standard_normal((2, shape.num_vectors, shape.head_dim)).astype(np.float32)
    qkv[:, : shape.num_heads] *= size
    rotations = angles(random, 2, shape)
    out, after = run(shape, qkv.reshape(2, -1), rotations, step, table, 0, kv)
    queries = as_in_pages(rotated(qkv[:, : shape.num_heads], rotations, shape), shape)
    for row, start in enumerate((600, 90)):
        keys, values = context(after, 0, table[row], start + 1)
        scores = np.einsum("khd,hd->kh", np.repeat(keys, 3, axis=1), queries[row])
        best = np.sort(scores, axis=0)
        chosen = np.repeat(values, 3, axis=1)[scores.argmax(axis=0), np.arange(shape.num_heads)]
        is_clear = best[-1] - best[-2] > 0.02 * np.abs(best[-1])
        assert is_clear.any()
        # Of integers the weight is rounded with the value's scale; what comes of int8 is transformed there and back.
        rtol, atol = (BFLOAT16_UNIT, 2.0**-20 * np.abs(chosen).max()) if shape.has_scales else (1e-5, 0.0)
        got = as_in_pages(out[row], shape)[is_clear]
        np.testing.assert_allclose(got, chosen[is_clear], rtol=rtol, atol=atol)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("page_size", [16, 32])
def test_what_comes_later_changes_nothing_before_it(variant, kind, page_size):
    """A later token of the same block may have far larger keys and values; of integers their scales are others."""
    random = np.random.default_rng(6)
    shape = Shape(kind=kind, page_size=page_size)
    step, first_changed = make_step([-1], [(70, 24)], 24), 15
    table, num_pages = make_table(random, step, page_size)
    kv = fill(random, make_pages(random, shape, num_pages), 0, step, table)
    qkv = random.standard_normal((step.num_tokens, shape.num_vectors * shape.head_dim)).astype(np.float32)
    rotations = angles(random, step.num_tokens, shape)
    out, _ = run(shape, qkv, rotations, step, table, 0, kv)
    changed = step.first_token(1) + first_changed
    qkv[changed:] *= 1e4
    other, _ = run(shape, qkv, rotations, step, table, 0, kv)
    np.testing.assert_array_equal(other[1:changed], out[1:changed])
    assert (other[changed:] != out[changed:]).any(axis=(1, 2)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_many_small_weights_count_beside_a_large_one(variant, kind):
    """One key's weight is 3e5 times that of each of the others, most of which lie in other blocks: 0.7 % together."""
    random = np.random.default_rng(7)
    shape = Shape(kind=kind, page_size=32, rotary_dim=0, scale=1.0)
    length, ratio = 2016, 18.0 * np.log(2.0)
    step = make_step([length - 1])
    table, num_pages = make_table(random, step, shape.page_size)
    kv = fill(random, make_pages(random, shape, num_pages), 0, step, table)
    data, positions = in_rows(kv.data), np.arange(length - 1)
    tokens = 0, table[0, positions // shape.page_size], positions % shape.page_size
    vectors = np.zeros((length - 1, 2, shape.num_kv_heads, shape.head_dim))
    vectors[:, 1] = 1.0
    vectors[3, :, :, :] = [[[1.0]], [[-1.0]]]
    if kv.scales is None:
        by_token(data)[tokens] = vectors.astype(data.dtype)
    else:
        transforms = as_in_pages(vectors, shape)  # of which one feature is not 0
        largest, most = np.abs(transforms).max(), 127 if kind == "int8" else 8000  # the length of 32 of these fits
        by_token(data)[tokens] = np.rint(transforms / largest * most)
        by_token(kv.scales)[tokens] = largest / most
    qkv = np.zeros((1, shape.num_vectors, shape.head_dim), np.float32)
    qkv[:, : shape.num_heads] = ratio / shape.head_dim
    qkv[:, -shape.num_kv_heads :] = 1.0
    kv = KVPages(in_blocks(data), kv.scales)
    out, _ = run(shape, qkv.reshape(1, -1), angles(random, 1, shape), step, table, 0, kv)
    others = (length - 1) * 2.0**-18
    # A weight times a scale is rounded where int8 is widened.
    rounding = BFLOAT16_UNIT if kind == "int8" and variant in WIDENING else 0.0
    np.testing.assert_allclose(out[0], (others - 1) / (others + 1), rtol=rounding, atol=0.05 * others)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("weight", "scale"), [(0.995, 1e-4), (0.9, 1e-2), (1e-4, 100.0)])
def test_one_key_whose_values_are_far_from_the_others(variant, kind, weight, scale):
    """Such as the first token of a text: it gets most of the weight, and its values are next to nothing."""
    random = np.random.default_rng(8)
    shape = Shape(kind=kind, page_size=32, head_dim=64, rotary_dim=0)
    length = 49
    step = make_step([length - 1])
    table, num_pages = make_table(random, step, shape.page_size)
    kv = make_pages(random, shape, num_pages)
    qkv = random.standard_normal((length, shape.num_vectors, shape.head_dim)).astype(np.float32)
    queries, keys, values = np.split(qkv, [shape.num_heads, shape.num_heads + shape.num_kv_heads], axis=1)
    queries[:] = 1.0
    keys[0] = np.log(weight / (1 - weight) * (length - 1)) / shape.head_dim / shape.score_scale
    keys[1:] *= 0.1
    values[0] *= scale
    rotations = angles(random, length, shape)
    for token in range(length):  # each writes its keys and values into the pages
        one = make_step([token])
        out, kv = run(shape, qkv[token : token + 1].reshape(1, -1), rotations[:1], one, table, 0, kv)
    all_keys, all_values = context(kv, 0, table[0], length)
    scales = scales_of(kv, 0, table[0], length)
    want, bound = attend(as_in_pages(queries[-1:], shape), length - 1, all_keys, all_values, scales, shape)
    assert (np.abs(as_in_pages(out, shape) - want) <= bound).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(0.0,), (1.0, 0.0), (1e-36, 1.0, 0.0, 1e18)], ids=str)
def test_values_of_nothing_and_of_any_size(variant, kind, sizes):
    """A key whose values are nothing takes its weight from the others all the same."""
    random = np.random.default_rng(10)
    shape = Shape(kind=kind, page_size=32, head_dim=64, rotary_dim=0)
    length = 6
    table, num_pages = make_table(random, make_step([length - 1]), shape.page_size)
    kv = make_pages(random, shape, num_pages)
    qkv = random.standard_normal((length, shape.num_vectors, shape.head_dim)).astype(np.float32)
    queries, _, values = np.split(qkv, [shape.num_heads, shape.num_heads + shape.num_kv_heads], axis=1)
    values *= np.resize(sizes, length).astype(np.float32)[:, None, None]
    rotations = angles(random, length, shape)
    for token in range(length):  # each writes its keys and values into the pages
        one = make_step([token])
        out, kv = run(shape, qkv[token : token + 1].reshape(1, -1), rotations[:1], one, table, 0, kv)
    keys, stored = context(kv, 0, table[0], length)
    scales = scales_of(kv, 0, table[0], length)
    want, bound = attend(as_in_pages(queries[-1:], shape), length - 1, keys, stored, scales, shape)
    assert (np.abs(as_in_pages(out, shape) - want) <= bound).all()


@pytest.mark.parametrize("kind", ["int16", "int8"])
@pytest.mark.parametrize("head_dim", [16, 704])
def test_the_largest_products_fit_their_sums(variant, kind, head_dim):
    """Of int8, vectors with one feature in each block of the transform become equal features, as large as can be.

    Of int16 a query and a key are as long as can be, and the weight of one key is all that there is.
    """
    random = np.random.default_rng(9)
    shape = Shape(kind=kind, group=1, num_kv_heads=1, head_dim=head_dim, page_size=32, rotary_dim=0, scale=0.25)
    step = make_step([1])
    table, num_pages = make_table(random, step, shape.page_size)
    kv = make_pages(random, shape, num_pages)
    ones = np.zeros(shape.head_dim, np.float32)
    ones[:: 64 if kind == "int8" else 4] = 1.0
    values = random.standard_normal((2, shape.head_dim)).astype(np.float32)
    for token, key in enumerate((ones, -ones)):
        qkv = np.stack([4 * ones, key, values[token]]).reshape(1, -1)
        out, kv = run(shape, qkv, angles(random, 1, shape), make_step([token]), table, 0, kv)
    keys, stored = context(kv, 0, table[0], 2)
    scales = scales_of(kv, 0, table[0], 2)
    want, bound = attend(as_in_pages(4 * ones[None, None], shape), 1, keys, stored, scales, shape)
    assert (np.abs(as_in_pages(out, shape) - want) <= bound).all()


def pages_of(parts: int, head_dim: int, dtype: str = "float32", scales: np.ndarray | None = None) -> KVPages:
    return KVPages(np.zeros((1, 4, parts, 2, 16, head_dim), dtype), scales)


def call(**changes):
    """A right call but for the changes."""
    arguments = dict(
        qkv=np.zeros((3, Shape().num_vectors * 32), np.float32),
        rotations=np.zeros((2, 3, 32), np.float32),
        tables=np.array([1], np.int32),
        windows=np.array([0], np.int32),
        q_norm=np.zeros(0, np.float32),
        k_norm=np.ones((1, 32), np.float32),
        rows=make_step([0] * 3).rows,
        page_table=np.ones((3, 2), np.int32),
        layer=np.int32(0),
        kv=pages_of(2, 32),
        num_heads=Shape().num_heads,
        num_tiles=0,
        scale=32**-0.5,
        epsilon=EPSILON,
    )
    return attention(**(arguments | changes))


def test_the_call_that_others_change_is_right(variant):
    out, _ = call()
    np.testing.assert_array_equal(out, np.zeros((3, Shape().num_heads * 32)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(qkv=np.zeros((3, 64), np.float32)), "qkv has another shape"),
        (dict(num_heads=5), "qkv has another shape"),
        (dict(rotations=np.zeros((2, 2, 32), np.float32)), "rotations have another shape"),
        (dict(rotations=np.zeros((3, 32), np.float32)), "rotations have another shape"),
        (dict(tables=np.array([2], np.int32)), "there is no such table of rotations"),
        (dict(tables=np.array([-2], np.int32)), "there is no such table of rotations"),
        (dict(windows=np.array([-1], np.int32)), "a window is negative"),
        (dict(page_table=np.ones((2, 2), np.int32)), "the page table has another shape"),
        (dict(layer=np.int32(1)), "there is no such layer"),
        (dict(rows=make_step([0] * 2).rows, page_table=np.ones((2, 2), np.int32)), "the number of tokens does not fit"),
        (dict(kv=pages_of(2, 32, "float16")), "pages are of float32, bfloat16, int16 or int8"),
        (
            dict(kv=pages_of(2, 32, "int8", np.zeros((1, 4), np.float32))),
            "the scales have another shape",
        ),
        (dict(kv=pages_of(3, 32)), "the pages have another shape"),
    ],
)
def test_a_wrong_call_is_an_error(variant, changes, message):
    # JAX raises one or the other, depending on whether it has compiled such a call before.
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=f"eagre: {message}"):
        jax.block_until_ready(call(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(kv=pages_of(2, 24)), "head_dim is 24; it is a multiple of 16, at most 704"),
        (dict(kv=pages_of(2, 720)), "head_dim is 720; it is a multiple of 16, at most 704"),
        (dict(rotations=np.zeros((2, 3, 15), np.float32)), "rotary_dim is 15; it is an even number, at most head_dim"),
        (dict(rotations=np.zeros((2, 3, 34), np.float32)), "rotary_dim is 34; it is an even number, at most head_dim"),
        (dict(softcap=-1.0), "softcap is -1.0; it is not negative"),
        (dict(q_norm=np.ones((1, 64), np.float32)), r"q_norm has the shape \(1, 64\); it is \(1, 32\), \(1, 192\) or"),
        (dict(k_norm=np.ones((2, 32), np.float32)), r"k_norm has the shape \(2, 32\); it is \(1, 32\), \(1, 64\) or"),
        (dict(tables=np.zeros(2, np.int32)), r"tables has the shape \(2,\); it is \(1,\), one for each layer"),
        (dict(slopes=np.zeros(5, np.float32)), r"slopes have the shape \(5,\); it is \(6,\) or empty"),
        (dict(windows=np.zeros(2, np.int32)), r"windows has the shape \(2,\); it is \(1,\), one for each layer"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(variant, changes, message):
    with pytest.raises(ValueError, match=message):
        call(**changes)
