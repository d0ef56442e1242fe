"""Shapes of attention, random pages for them, and attention in float64.

The reference attends over the keys and values as they lie in the pages afterwards, which a test of their own compares
with what was to be written; of int8 these are transforms, and so are the queries and results that are compared
(`as_in_pages`). What remains is float32 arithmetic, and for pages of bfloat16 the rounding of queries and of softmax
weights to bfloat16: a relative 2^-8 at most. For pages of int16 kernels round them to integers of 16 bits, which is
less, and for those of int8 to bytes, or to bfloat16 as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from cache.storage import KVPages
from engine.backends.base.operands import TokenIndex
from engine.backends.native.attention import attention
from tests.engine.backends.native.support.steps import Step

BFLOAT16_UNIT = 2.0**-8  # half the distance of 1 to the next: what rounding does at most, relatively
INT8_MAX, INT16_MAX = 127.0, 32767.0
INT16_LENGTH = 46300.0  # of a vector in steps: its square fits 31 bits
EPSILON = 1e-3  # large enough that a norm without it would be seen
NUM_LAYERS = 2
KEYS_AT_ONCE = 64  # whose weights are rounded together
BYTE_ZERO = 128  # of keys of int8 in blocks
BLOCK = 32  # tokens; pages of a multiple of it hold them in blocks, laid out as attention reads them


@dataclass(frozen=True)
class Shape:
    """Of a model's attention and its pages; the constants are those of one layer."""

    kind: str = "float32"
    page_size: int = 16
    num_kv_heads: int = 2
    group: int = 3  # query heads of a key head
    head_dim: int = 32
    window: int = 0
    rotary_dim: int | None = None  # None: the whole head
    is_rotated: bool = True
    scale: float | None = None  # None: the inverse root of head_dim
    softcap: float = 0.0
    has_sinks: bool = False
    slopes: str | None = None  # of biases by distance: "exact", or "rounded" to bfloat16
    norm: str | None = None  # of queries and keys: "each" head by itself, "all" heads as one vector

    @property
    def has_scales(self) -> bool:
        return self.kind in ("int16", "int8")

    @property
    def num_heads(self) -> int:
        return self.num_kv_heads * self.group

    @property
    def num_vectors(self) -> int:  # of a token: its queries, keys and values
        return self.num_heads + 2 * self.num_kv_heads

    @property
    def num_rotated(self) -> int:
        return self.head_dim if self.rotary_dim is None else self.rotary_dim

    @property
    def score_scale(self) -> float:
        return self.head_dim**-0.5 if self.scale is None else self.scale


def angles(random: np.random.Generator, num_tokens: int, shape: Shape) -> np.ndarray:
    """Rotations, float32[num_tokens, rotary_dim]."""
    angle = random.uniform(-np.pi, np.pi, (num_tokens, shape.num_rotated // 2))
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)


def norm_weights(num_heads: int, shape: Shape) -> np.ndarray:
    """The norm of so many heads in the layer of the constants: float32[num_heads * head_dim], [head_dim] or [0]."""
    size = {None: 0, "each": shape.head_dim, "all": num_heads * shape.head_dim}[shape.norm]
    return np.random.default_rng(num_heads).uniform(0.5, 1.5, size).astype(np.float32)


def sinks_of(shape: Shape) -> np.ndarray:
    """The sinks of the layer of the constants, float32[num_heads], some of them above all scores, or [0]."""
    if not shape.has_sinks:
        return np.zeros(0, np.float32)
    return np.random.default_rng(shape.num_heads).uniform(-6.0, 20.0, shape.num_heads).astype(np.float32)


def slopes_of(shape: Shape) -> np.ndarray:
    """What the distance of a key takes from its score: float32[num_heads], or [0]."""
    if shape.slopes is None:
        return np.zeros(0, np.float32)
    return np.random.default_rng(shape.num_heads).uniform(0.001, 0.4, shape.num_heads).astype(np.float32)


def biases_of(positions: np.ndarray, num_keys: int, shape: Shape) -> np.ndarray:
    """What the scores of queries at some positions change by: float64[num_heads, queries, num_keys]."""
    slopes, keys = slopes_of(shape)[:, None, None], np.arange(num_keys, dtype=np.float32)
    if shape.slopes == "exact":
        return -slopes.astype(np.float64) * np.abs(positions[:, None] - keys)
    product = slopes.astype(jnp.bfloat16).astype(np.float32) * keys.astype(jnp.bfloat16).astype(np.float32)
    rounded = product.astype(jnp.bfloat16).astype(np.float64) * shape.score_scale
    return np.broadcast_to(rounded, (len(slopes), len(positions), num_keys))


def normed(x: np.ndarray, shape: Shape) -> np.ndarray:
    """float64[tokens, heads, head_dim]."""
    x = x.astype(np.float64)
    if shape.norm is None:
        return x
    weights = norm_weights(x.shape[1], shape).astype(np.float64).reshape(-1, shape.head_dim)
    together = (1, 2) if shape.norm == "all" else 2
    return x / np.sqrt((x * x).mean(axis=together, keepdims=True) + EPSILON) * weights


def rotated(x: np.ndarray, rotations: np.ndarray, shape: Shape) -> np.ndarray:
    """float64[tokens, heads, head_dim], normed and rotated."""
    x = normed(x, shape)
    if not shape.is_rotated:
        return x
    cos, sin = np.split(rotations.astype(np.float64)[:, None], 2, axis=2)
    a, b = np.split(x[:, :, : shape.num_rotated], 2, axis=2)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[:, :, shape.num_rotated :]], axis=2)


def as_in_pages(x: np.ndarray, shape: Shape) -> np.ndarray:
    """float64 of vectors [..., head_dim], of int8 their Hadamard transforms, which undo themselves."""
    if shape.kind != "int8":
        return x.astype(np.float64)
    size = shape.head_dim & -shape.head_dim
    signs = [[1 - 2 * ((i & j).bit_count() % 2) for j in range(size)] for i in range(size)]
    return (x.astype(np.float64).reshape(*x.shape[:-1], -1, size) @ np.array(signs) / np.sqrt(size)).reshape(x.shape)


def make_pages(random: np.random.Generator, shape: Shape, num_pages: int) -> KVPages:
    """Of arrays of NumPy, full of what must not matter: of integers the scales are no numbers."""
    size = (NUM_LAYERS, num_pages, 2, shape.num_kv_heads, shape.page_size, shape.head_dim)
    if shape.has_scales:
        limits = np.iinfo(shape.kind)
        data = random.integers(limits.min, limits.max, size, shape.kind, endpoint=True)
        return KVPages(data, np.full(size[:-1], np.nan, np.float32))
    return KVPages(np.full(size, np.nan, jnp.dtype(shape.kind)), None)


def _in_blocks(data: np.ndarray) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Of pages whose tokens lie in blocks of 32: the shapes of all blocks, and of one of keys and one of values."""
    *outer, num_tokens, head_dim = data.shape
    count = 4 // data.itemsize  # of numbers of a word
    keys, values = (head_dim // count, BLOCK, count), (BLOCK // count, head_dim, count)
    return (*outer[:2], 2, outer[3], num_tokens // BLOCK, BLOCK * head_dim), keys, values


def in_rows(data: np.ndarray) -> np.ndarray:
    """Pages as the kernels hold them, with the vectors of their tokens one behind the other."""
    if data.shape[4] % BLOCK != 0:
        return data.copy()
    shape, keys, values = _in_blocks(data)
    blocks, rows = data.reshape(shape).copy(), np.empty(shape, data.dtype)
    if data.dtype == np.int8:
        blocks[:, :, 0].view(np.uint8)[...] ^= BYTE_ZERO
    rows[:, :, 0] = (
        blocks[:, :, 0].reshape(*shape[:2], *shape[3:5], *keys).swapaxes(-3, -2).reshape(rows[:, :, 0].shape)
    )
    rows[:, :, 1] = (
        blocks[:, :, 1].reshape(*shape[:2], *shape[3:5], *values).swapaxes(-2, -1).reshape(rows[:, :, 1].shape)
    )
    return rows.reshape(data.shape)


def in_blocks(data: np.ndarray) -> np.ndarray:
    """The inverse of `in_rows`."""
    if data.shape[4] % BLOCK != 0:
        return data
    shape, (key_words, _, count), (value_words, head_dim, _) = _in_blocks(data)
    rows, blocks = data.reshape(shape), np.empty(shape, data.dtype)
    keys = rows[:, :, 0].reshape(*shape[:2], *shape[3:5], BLOCK, key_words, count).swapaxes(-3, -2)
    values = rows[:, :, 1].reshape(*shape[:2], *shape[3:5], value_words, count, head_dim).swapaxes(-2, -1)
    blocks[:, :, 0], blocks[:, :, 1] = keys.reshape(blocks[:, :, 0].shape), values.reshape(blocks[:, :, 1].shape)
    if data.dtype == np.int8:
        blocks[:, :, 0].view(np.uint8)[...] ^= BYTE_ZERO
    return blocks.reshape(data.shape)


def by_token(pages: np.ndarray) -> np.ndarray:
    """A view of pages [layer, page, 2, head, token, ...] as [layer, page, token, 2, head, ...]."""
    return np.moveaxis(pages, 4, 2)


def fill(random: np.random.Generator, kv: KVPages, layer: int, step: Step, table: np.ndarray) -> KVPages:
    """Puts random keys and values where the rows have been before this step."""
    data, scales = in_rows(kv.data), None if kv.scales is None else kv.scales.copy()
    for row, (start, count, _) in enumerate(step.rows):
        if count == 0:
            continue
        positions = np.arange(start)
        tokens = layer, table[row, positions // kv.page_size], positions % kv.page_size
        vectors = start, *by_token(data).shape[3:]
        if scales is None:
            by_token(data)[tokens] = random.standard_normal(vectors).astype(data.dtype)
        else:
            most = 127 if data.dtype == np.int8 else int(INT16_LENGTH / data.shape[-1] ** 0.5)
            by_token(data)[tokens] = random.integers(-most, most + 1, vectors, data.dtype)
            by_token(scales)[tokens] = random.uniform(0.5, 1.5, vectors[:-1]) / (0.575 * most)
    return KVPages(in_blocks(data), scales)


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
    """Keys and values of a row's first tokens, float64[length, heads, head_dim] each, of int8 their transforms."""
    positions = np.arange(length)
    tokens = layer, table[positions // kv.page_size], positions % kv.page_size
    both = by_token(in_rows(kv.data))[tokens].astype(np.float64)
    if kv.scales is not None:
        both *= by_token(kv.scales)[tokens][..., None]
    return both[:, 0], both[:, 1]


def scales_of(kv: KVPages, layer: int, table: np.ndarray, length: int) -> np.ndarray | None:
    """Scales of the values of a row's first tokens, float64[length, heads]; None where pages have none."""
    if kv.scales is None:
        return None
    positions = np.arange(length)
    return by_token(kv.scales)[layer, table[positions // kv.page_size], positions % kv.page_size, 1].astype(np.float64)


def attend(
    q: np.ndarray, start: int, keys: np.ndarray, values: np.ndarray, scales: np.ndarray | None, shape: Shape
) -> tuple[np.ndarray, ...]:
    """A row's queries [tokens, num_heads, head_dim] from position `start` on, and the bounds of the errors."""
    queries = q.transpose(1, 0, 2) * shape.score_scale
    keys = np.repeat(keys, shape.group, axis=1).transpose(1, 2, 0)
    values = np.repeat(values, shape.group, axis=1).transpose(1, 0, 2)
    distance = start + np.arange(len(q))[:, None] - np.arange(keys.shape[2])
    is_visible = (distance >= 0) & (distance < (shape.window or np.inf))
    scores = queries @ keys
    if shape.softcap:
        scores = shape.softcap * np.tanh(scores / shape.softcap)
    biases = biases_of(start + np.arange(len(q)), keys.shape[2], shape) if shape.slopes else np.zeros(1)
    scores = np.where(is_visible, scores + biases, -np.inf)
    sinks = sinks_of(shape).astype(np.float64)[:, None, None] if shape.has_sinks else np.float64(-np.inf)
    most = np.maximum(scores.max(axis=2, keepdims=True), sinks)
    weights = np.exp(scores - most)
    weights /= weights.sum(axis=2, keepdims=True) + np.exp(sinks - most)
    terms = np.where(is_visible, np.abs(queries) @ np.abs(keys), 0.0).max(axis=2, keepdims=True)
    relative = np.expm1(2 * terms * shape.head_dim * 2.0**-23) + keys.shape[2] * 2.0**-23 + 2.0**-20
    relative += shape.softcap * 2.0**-20  # a cap bends scores, and so lessens the errors above, but adds its own
    relative += np.abs(biases).max() * 2.0**-22
    if shape.kind != "float32":
        relative += np.expm1(2.02 * terms * BFLOAT16_UNIT) + 1.01 * BFLOAT16_UNIT
    if shape.kind == "int8":  # half a step of the largest feature in each feature of a query
        steps = np.abs(queries).max(axis=2, keepdims=True) / INT8_MAX
        keys_at = np.where(is_visible, np.abs(keys).sum(axis=1, keepdims=True), 0.0).max(axis=2, keepdims=True)
        relative += np.expm1(1.01 * keys_at * steps)
    result, bound = weights @ values, relative * (weights @ np.abs(values)) + 1e-12
    if shape.kind == "int8":
        # Float32 of the transform there and back, in which a feature gets a share of all errors.
        bound += 2.0**-20 * np.abs(result).max(axis=2, keepdims=True)
        bound += 1.01 * (1.0 + relative) * _errors_of_byte_weights(weights, values, scales, shape)
    return result.transpose(1, 0, 2), bound.transpose(1, 0, 2)


def _errors_of_byte_weights(weights: np.ndarray, values: np.ndarray, scales: np.ndarray, shape: Shape) -> np.ndarray:
    """What half a step of weights times scales may do, of which 255 are the largest one of each few keys."""
    of_keys = np.repeat(scales, shape.group, axis=1).T[:, None, :]  # [num_heads, 1, keys]
    products, errors = weights * of_keys, np.zeros((*weights.shape[:2], values.shape[2]))
    integers = np.abs(values) / np.maximum(of_keys, np.finfo(np.float64).tiny).swapaxes(1, 2)
    for first in range(0, weights.shape[2], KEYS_AT_ONCE):
        few = slice(first, first + KEYS_AT_ONCE)
        steps = products[:, :, few].max(axis=2, keepdims=True) / 255.0
        errors += 0.5 * steps * ((products[:, :, few] > 0.0) @ integers[:, few])
    return errors


def of_layers(value: np.ndarray, layer: int) -> np.ndarray:
    """A stack of all layers, [NUM_LAYERS, ...], of which the others are NaN."""
    stack = np.full((NUM_LAYERS, *value.shape), np.nan, np.float32)
    stack[layer] = value
    return stack


def run(
    shape: Shape, qkv, rotations, step: Step, table, layer: int, kv: KVPages, index: TokenIndex | None = None
) -> tuple[np.ndarray, KVPages]:
    """Calls the kernel for a layer; what belongs to the other layers would spoil its result."""
    which = 1 - layer  # of the tables of rotations
    tables, windows = np.full(NUM_LAYERS, layer, np.int32), np.ones(NUM_LAYERS, np.int32)
    tables[layer] = which if shape.is_rotated else -1
    windows[layer] = shape.window
    out, kv = attention(
        qkv,
        of_layers(rotations, which),
        tables,
        windows,
        of_layers(norm_weights(shape.num_heads, shape), layer),
        of_layers(norm_weights(shape.num_kv_heads, shape), layer),
        step.rows,
        table,
        np.int32(layer),
        kv,
        num_heads=shape.num_heads,
        num_tiles=step.num_tiles,
        scale=shape.score_scale,
        softcap=shape.softcap,
        epsilon=EPSILON,
        sinks=of_layers(sinks_of(shape), layer),
        slopes=slopes_of(shape),
        rounds_biases=shape.slopes == "rounded",
        index=index,
    )
    out = np.asarray(out).reshape(len(qkv), shape.num_heads, shape.head_dim)
    return out, KVPages(np.asarray(kv.data), None if kv.scales is None else np.asarray(kv.scales))


def assert_untouched(before: KVPages, after: KVPages, layer: int, written: set[tuple[int, int]]) -> None:
    """Bit for bit, all but the tokens written."""
    untouched = np.ones(by_token(before.data).shape[:3], bool)
    for page, offset in written:
        untouched[layer, page, offset] = False
    for old, new in ((in_rows(before.data), in_rows(after.data)), (before.scales, after.scales)):
        if old is not None:
            assert by_token(old)[untouched].tobytes() == by_token(new)[untouched].tobytes()


def assert_written(
    shape: Shape, keys: np.ndarray, values: np.ndarray, kv: KVPages, layer: int, page: int, offset: int
) -> None:
    """One token's keys and values, float64[heads, head_dim], within what rounding to the pages' type may do."""
    for part, want in enumerate((as_in_pages(keys, shape), as_in_pages(values, shape))):
        got = by_token(in_rows(kv.data))[layer, page, offset, part].astype(np.float64)
        is_normed = shape.norm is not None and part == 0
        # Of the norm, the rotation and the transform.
        float32_error = 2.0 ** (-20 if is_normed or shape.kind == "int8" else -22) * np.abs(want).max()
        if shape.has_scales:
            scales = by_token(kv.scales)[layer, page, offset, part].astype(np.float64)[:, None]
            steps = np.abs(want).max(axis=1, keepdims=True) / (INT8_MAX if shape.kind == "int8" else INT16_MAX)
            if shape.kind == "int16":
                steps = np.maximum(steps, np.linalg.norm(want, axis=1, keepdims=True) / INT16_LENGTH)
            np.testing.assert_allclose(scales, steps, rtol=3e-6 if is_normed else 2e-6)
            assert (np.abs(got * scales - want) <= 0.5001 * scales + float32_error).all()
        else:
            unit = BFLOAT16_UNIT if shape.kind == "bfloat16" else 0.0
            assert (np.abs(got - want) <= 1.001 * unit * np.abs(want) + float32_error).all()
