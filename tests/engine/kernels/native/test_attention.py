"""Ragged paged attention against float64, over random rows, page layouts, heads and kinds of pages.

The reference attends over the keys and values as they lie in the pages afterwards, which a test of
their own compares with what was to be written. What remains is float32 arithmetic, and for pages of
bfloat16 or int8 the rounding of queries and of softmax weights to bfloat16: a relative 2^-8 at most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cache.storage import KVPages
from engine.kernels.native import kernels
from tests.engine.kernels.native.steps import Step, make_step

BFLOAT16_UNIT = 2.0**-8  # half the distance of 1 to the next: what rounding does at most, relatively
INT8_MAX = 127.0
NUM_LAYERS = 2
KINDS = ("float32", "bfloat16", "int8")


@dataclass(frozen=True)
class Shape:
    """Of a model's attention and its pages."""

    kind: str = "float32"
    page_size: int = 16
    num_kv_heads: int = 2
    group: int = 3  # query heads of a key head
    head_dim: int = 32
    window: int = 0

    @property
    def num_heads(self) -> int:
        return self.num_kv_heads * self.group

    @property
    def num_vectors(self) -> int:  # of a token: its queries, keys and values
        return self.num_heads + 2 * self.num_kv_heads


def angles(random: np.random.Generator, num_tokens: int, shape: Shape) -> np.ndarray:
    """Rotations, float32[num_tokens, head_dim]."""
    angle = random.uniform(-np.pi, np.pi, (num_tokens, shape.head_dim // 2))
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)


def rotated(x: np.ndarray, rotations: np.ndarray) -> np.ndarray:
    """float64[tokens, heads, head_dim]."""
    cos, sin = np.split(rotations.astype(np.float64)[:, None], 2, axis=2)
    a, b = np.split(x.astype(np.float64), 2, axis=2)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=2)


def make_pages(random: np.random.Generator, shape: Shape, num_pages: int) -> KVPages:
    """Of arrays of NumPy, full of what must not matter: of int8 the scales are no numbers."""
    size = (NUM_LAYERS, num_pages, 2, shape.num_kv_heads, shape.page_size, shape.head_dim)
    if shape.kind == "int8":
        data = random.integers(-128, 128, size, np.int8)
        return KVPages(data, np.full(size[:-1], np.nan, np.float32))
    return KVPages(np.full(size, np.nan, jnp.dtype(shape.kind)), None)


def by_token(pages: np.ndarray) -> np.ndarray:
    """A view of pages [layer, page, 2, head, token, ...] as [layer, page, token, 2, head, ...]."""
    return np.moveaxis(pages, 4, 2)


def fill(random: np.random.Generator, kv: KVPages, layer: int, step: Step, table: np.ndarray) -> KVPages:
    """Puts random keys and values where the rows have been before this step."""
    data, scales = kv.data.copy(), None if kv.scales is None else kv.scales.copy()
    for row, (start, count, _) in enumerate(step.rows):
        if count == 0:
            continue
        positions = np.arange(start)
        tokens = layer, table[row, positions // kv.page_size], positions % kv.page_size
        vectors = start, *by_token(data).shape[3:]
        if scales is None:
            by_token(data)[tokens] = random.standard_normal(vectors).astype(data.dtype)
        else:
            by_token(data)[tokens] = random.integers(-127, 128, vectors, np.int8)
            by_token(scales)[tokens] = random.uniform(0.5, 1.5, vectors[:-1]) / 73.0
    return KVPages(data, scales)


def make_table(random: np.random.Generator, step: Step, page_size: int) -> tuple[np.ndarray, int]:
    """Pages in random order, none twice; what lies behind a row's last page is nonsense."""
    needed = [-(-int(start + count) // page_size) for start, count, _ in step.rows]
    pages = random.permutation(np.arange(1, sum(needed) + 3))
    table = random.choice(np.array([-1, 0, 2**30, -(2**31)], np.int32), (len(step.rows), max(needed) + 2))
    at = 0
    for row, count in enumerate(needed):
        if step.rows[row, 1] > 0:
            table[row, :count] = pages[at : at + count]
            at += count
    return table.astype(np.int32), len(pages) + 1


def context(kv: KVPages, layer: int, table: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of a row's first tokens as they lie in its pages, float64[length, heads, head_dim] each."""
    positions = np.arange(length)
    tokens = layer, table[positions // kv.page_size], positions % kv.page_size
    both = by_token(kv.data)[tokens].astype(np.float64)
    if kv.scales is not None:
        both *= by_token(kv.scales)[tokens][..., None]
    return both[:, 0], both[:, 1]


def attend(q: np.ndarray, start: int, keys: np.ndarray, values: np.ndarray, shape: Shape) -> tuple[np.ndarray, ...]:
    """A row's queries [tokens, num_heads, head_dim] from position `start` on, and the bounds of the errors."""
    queries = q.transpose(1, 0, 2)
    keys = np.repeat(keys, shape.group, axis=1).transpose(1, 2, 0)
    values = np.repeat(values, shape.group, axis=1).transpose(1, 0, 2)
    distance = start + np.arange(len(q))[:, None] - np.arange(keys.shape[2])
    is_visible = (distance >= 0) & (distance < (shape.window or np.inf))
    scores = np.where(is_visible, queries @ keys / shape.head_dim**0.5, -np.inf)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    terms = np.where(is_visible, np.abs(queries) @ np.abs(keys) / shape.head_dim**0.5, 0.0).max(axis=2, keepdims=True)
    relative = np.expm1(2 * terms * shape.head_dim * 2.0**-23) + keys.shape[2] * 2.0**-23 + 2.0**-20
    if shape.kind != "float32":
        relative += np.expm1(2.02 * terms * BFLOAT16_UNIT) + 1.01 * BFLOAT16_UNIT
    result, bound = weights @ values, relative * (weights @ np.abs(values)) + 1e-12
    return result.transpose(1, 0, 2), bound.transpose(1, 0, 2)


def run(shape: Shape, qkv, rotations, step: Step, table, layer: int, kv: KVPages) -> tuple[np.ndarray, KVPages]:
    out, kv = kernels.attention(
        qkv,
        rotations,
        step.rows,
        table,
        np.int32(layer),
        kv,
        num_heads=shape.num_heads,
        num_tiles=step.num_tiles,
        window=shape.window,
    )
    out = np.asarray(out).reshape(len(qkv), shape.num_heads, shape.head_dim)
    return out, KVPages(np.asarray(kv.data), None if kv.scales is None else np.asarray(kv.scales))


def random_rows(random: np.random.Generator, longest: int) -> Step:
    """A few single rows and tiles; contexts short and long, some rows padding."""

    def start() -> int:
        return int(random.integers(0, random.choice([2, 70, longest])))

    singles = [start() if random.random() < 0.8 else -1 for _ in range(random.integers(1, 5))]
    tiles = [(start(), int(random.integers(0, 25))) for _ in range(random.integers(0, 4))]
    return make_step(singles, tiles, 24)


SHAPES = [
    Shape(),
    Shape(group=1, head_dim=16, page_size=32),
    Shape(group=8, head_dim=64, num_kv_heads=1, page_size=7),
    Shape(group=3, head_dim=64, num_kv_heads=3, page_size=32, window=130),
    Shape(group=8, head_dim=128, num_kv_heads=1, window=1),
    Shape(group=1, head_dim=80, page_size=5, window=700),
]


def assert_untouched(before: KVPages, after: KVPages, layer: int, written: set[tuple[int, int]]) -> None:
    """Bit for bit, all but the tokens written."""
    untouched = np.ones(by_token(before.data).shape[:3], bool)
    for page, offset in written:
        untouched[layer, page, offset] = False
    for old, new in zip(before, after, strict=True):
        if old is not None:
            assert by_token(old)[untouched].tobytes() == by_token(new)[untouched].tobytes()


def assert_written(
    shape: Shape, keys: np.ndarray, values: np.ndarray, kv: KVPages, layer: int, page: int, offset: int
) -> None:
    """One token's keys and values, float64[heads, head_dim], within what rounding to the pages' type may do."""
    for part, want in enumerate((keys, values)):
        got = by_token(kv.data)[layer, page, offset, part].astype(np.float64)
        float32_error = 2.0**-22 * np.abs(want).max()  # of the rotation
        if shape.kind == "int8":
            scales = by_token(kv.scales)[layer, page, offset, part].astype(np.float64)[:, None]
            np.testing.assert_allclose(scales, np.abs(want).max(axis=1, keepdims=True) / INT8_MAX, rtol=1e-6)
            assert (np.abs(got * scales - want) <= 0.5001 * scales + float32_error).all()
        else:
            unit = BFLOAT16_UNIT if shape.kind == "bfloat16" else 0.0
            assert (np.abs(got - want) <= 1.001 * unit * np.abs(want) + float32_error).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("seed", range(2))
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

    queries = rotated(qkv[:, : shape.num_heads], rotations)
    keys = rotated(qkv[:, shape.num_heads : -shape.num_kv_heads], rotations)
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
        want, bound = attend(queries[real], start, all_keys, all_values, shape)
        error = np.abs(out[real] - want)
        assert (error <= bound).all(), f"row {row} is off by {(error / bound).max()} bounds"
        errors.append(error)
        results.append(want)
    assert_untouched(kv, after, layer, written)
    typical = np.sqrt((np.concatenate(errors) ** 2).mean() / (np.concatenate(results) ** 2).mean()) if errors else 0.0
    assert typical < (2e-6 if kind == "float32" else 6e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [0, 600])
@pytest.mark.parametrize("start", [0, 61, 507, 1020])  # before the ends of a block of keys and of a split
def test_a_token_is_the_same_in_a_tile_in_other_chunks_and_alone(variant, kind, window, start):
    random = np.random.default_rng(start)
    shape = Shape(kind=kind, group=3, head_dim=64, window=window)
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
            padded_rotations = np.zeros((step.num_tokens, shape.head_dim), np.float32)
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
def test_neighbours_and_padding_change_nothing(variant, kind):
    random = np.random.default_rng(1)
    shape = Shape(kind=kind, head_dim=48)
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
@pytest.mark.parametrize("page_size", [16, 32, 24])  # the last divides no split
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
    assert num_shared > 50
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
def test_scores_far_apart(variant, kind):
    """One key takes all of the weight, and the rest falls below the smallest number."""
    random = np.random.default_rng(3)
    shape = Shape(kind=kind)
    step = make_step([600, 90])
    table, num_pages = make_table(random, step, shape.page_size)
    kv = fill(random, make_pages(random, shape, num_pages), 0, step, table)
    qkv = random.standard_normal((2, shape.num_vectors, shape.head_dim)).astype(np.float32)
    qkv[:, : shape.num_heads] *= 1e4
    rotations = angles(random, 2, shape)
    out, after = run(shape, qkv.reshape(2, -1), rotations, step, table, 0, kv)
    queries = rotated(qkv[:, : shape.num_heads], rotations)
    for row, start in enumerate((600, 90)):
        keys, values = context(after, 0, table[row], start + 1)
        scores = np.einsum("khd,hd->kh", np.repeat(keys, 3, axis=1), queries[row])
        best = np.sort(scores, axis=0)
        chosen = np.repeat(values, 3, axis=1)[scores.argmax(axis=0), np.arange(shape.num_heads)]
        is_clear = best[-1] - best[-2] > 0.02 * np.abs(best[-1])
        assert is_clear.any()
        rtol = BFLOAT16_UNIT if kind == "int8" else 1e-5  # of int8 the weight is rounded with the value's scale
        np.testing.assert_allclose(out[row][is_clear], chosen[is_clear], rtol=rtol)


def pages_of(parts: int, head_dim: int, dtype: str = "float32", scales: np.ndarray | None = None) -> KVPages:
    return KVPages(np.zeros((1, 4, parts, 2, 16, head_dim), dtype), scales)


def call(**changes):
    """A right call but for the changes."""
    arguments = dict(
        qkv=np.zeros((3, Shape().num_vectors * 32), np.float32),
        rotations=np.zeros((3, 32), np.float32),
        rows=make_step([0] * 3).rows,
        page_table=np.ones((3, 2), np.int32),
        layer=np.int32(0),
        kv=pages_of(2, 32),
        num_heads=Shape().num_heads,
        num_tiles=0,
    )
    return kernels.attention(**(arguments | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(qkv=np.zeros((3, 64), np.float32)), "qkv has another shape"),
        (dict(num_heads=5), "qkv has another shape"),
        (dict(rotations=np.zeros((2, 32), np.float32)), "rotations have another shape"),
        (dict(page_table=np.ones((2, 2), np.int32)), "the page table has another shape"),
        (dict(layer=np.int32(1)), "there is no such layer"),
        (dict(rows=make_step([0] * 2).rows, page_table=np.ones((2, 2), np.int32)), "the number of tokens does not fit"),
        (dict(kv=pages_of(2, 24)), "heads are of 16, 32, ... 256 features"),
        (dict(kv=pages_of(2, 32, "float16")), "pages are of float32, bfloat16 or int8"),
        (
            dict(kv=pages_of(2, 32, "int8", np.zeros((1, 4), np.float32))),
            "the scales have another shape",
        ),
        (dict(kv=pages_of(3, 32)), "the pages have another shape"),
    ],
)
def test_a_wrong_call_is_an_error(variant, changes, message):
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"eagre: {message}"):
        jax.block_until_ready(call(**changes))
