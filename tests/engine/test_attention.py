"""Paged attention against plain float64 attention, over random lengths and page layouts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cache.storage import KVPages
from engine.attention import paged_attention, pages_per_block, token_layout
from engine.batch import NUM_TOKENS, START, StepBatch
from engine.shapes import TILE_SIZE, StepShape

NUM_LAYERS, HEAD_DIM = 2, 8


def reference(q, keys, values):
    """One query [num_heads, head_dim] over [length, num_kv_heads, head_dim], in float64."""
    group = q.shape[0] // keys.shape[1]
    out = np.empty(q.shape, np.float64)
    for head in range(q.shape[0]):
        scores = keys[:, head // group].astype(np.float64) @ q[head] * HEAD_DIM**-0.5
        weights = np.exp(scores - scores.max())
        out[head] = weights @ values[:, head // group] / weights.sum()
    return out


@pytest.mark.parametrize("num_heads", [3, 6])
@pytest.mark.parametrize("page_size", [4, 16])
@pytest.mark.parametrize("seed", range(4))
def test_it_equals_plain_attention(num_heads, page_size, seed):
    random = np.random.default_rng(seed)
    num_kv_heads, max_pages = 3, 3 * pages_per_block(page_size)
    shape = StepShape(num_decode_rows=4, num_tiles=3)
    num_real = [3, 2]  # the last decode row and the last tile are padding
    num_pages = 1 + max_pages * 7
    kv = random.standard_normal((NUM_LAYERS, num_pages, page_size, 2, num_kv_heads, HEAD_DIM)).astype(np.float32)
    batch = StepBatch.padding(shape, 1, max_pages)
    free_pages = random.permutation(np.arange(1, num_pages))
    limit = max_pages * page_size
    for row in [*range(num_real[0]), *range(4, 4 + num_real[1])]:
        length = 1 if row < 4 else int(random.integers(1, TILE_SIZE + 1))
        batch.rows[row, START] = random.integers(0, limit - length)
        batch.rows[row, NUM_TOKENS] = length
        batch.page_table[row], free_pages = free_pages[:max_pages], free_pages[max_pages:]
    q = random.standard_normal((shape.num_tokens, num_heads, HEAD_DIM)).astype(np.float32)
    k, v = random.standard_normal((2, shape.num_tokens, num_kv_heads, HEAD_DIM)).astype(np.float32)
    layer = seed % NUM_LAYERS

    @jax.jit
    def run(q, k, v, kv, batch):
        out, pages = paged_attention(q, k, v, KVPages(kv, None), jnp.int32(layer), token_layout(batch, page_size))
        return out, pages.data

    out, new_kv = map(np.asarray, run(q, k, v, kv, batch))
    untouched = np.ones(kv.shape[:3], bool)
    untouched[layer, 0] = False
    for row in range(shape.num_rows):
        start, length = batch.rows[row, START], batch.rows[row, NUM_TOKENS]
        first = row if row < 4 else 4 + (row - 4) * TILE_SIZE
        positions = start + np.arange(length)
        pages, offsets = batch.page_table[row, positions // page_size], positions % page_size
        assert np.array_equal(new_kv[layer, pages, offsets, 0], k[first : first + length])
        assert np.array_equal(new_kv[layer, pages, offsets, 1], v[first : first + length])
        untouched[layer, pages, offsets] = False
        sequence = new_kv[layer, batch.page_table[row]].reshape(-1, 2, num_kv_heads, HEAD_DIM)
        for i in range(length):
            context = sequence[: start + i + 1]
            expected = reference(q[first + i], context[:, 0], context[:, 1]).reshape(-1)
            np.testing.assert_allclose(out[first + i], expected, rtol=2e-5, atol=2e-5)
    assert np.array_equal(new_kv[untouched], kv[untouched]), "a page was written that no token of the step owns"
    assert np.isfinite(out).all()


def test_a_row_is_the_same_bit_for_bit_beside_longer_neighbours():
    random = np.random.default_rng(0)
    page_size, max_pages = 4, 3 * pages_per_block(4)
    kv = random.standard_normal((1, 1 + 2 * max_pages, page_size, 2, 1, HEAD_DIM)).astype(np.float32)
    q = random.standard_normal((2, 1, HEAD_DIM)).astype(np.float32)

    @jax.jit
    def run(q, kv, batch):
        return paged_attention(q, q, q, KVPages(kv, None), jnp.int32(0), token_layout(batch, page_size))[0]

    def outputs(lengths):
        batch = StepBatch.padding(StepShape(2, 0), 1, max_pages)
        batch.page_table[:] = 1 + np.arange(2 * max_pages).reshape(2, -1)
        batch.rows[:, START], batch.rows[:, NUM_TOKENS] = lengths, 1
        return np.asarray(run(q, kv, batch))

    assert np.array_equal(outputs([5, 6])[0], outputs([5, 300])[0])


@pytest.mark.parametrize("num_tiles", [0, 1])
def test_a_nan_that_another_request_left_reaches_nobody(num_tiles):
    """In the null page, in the rest of a page that changed hands, and in pages behind the row's end."""
    random = np.random.default_rng(0)
    page_size, max_pages = 4, 3 * pages_per_block(4)
    shape = StepShape(1 - num_tiles, num_tiles)
    kv = random.standard_normal((1, 1 + max_pages, page_size, 2, 1, HEAD_DIM)).astype(np.float32)
    q = random.standard_normal((shape.num_tokens, 1, HEAD_DIM)).astype(np.float32)
    batch = StepBatch.padding(shape, 1, max_pages)
    batch.page_table[0, :3] = [1, 2, 3]
    batch.rows[0, START], batch.rows[0, NUM_TOKENS] = 5, 1

    @jax.jit
    def run(q, kv, batch):
        return paged_attention(q, q, q, KVPages(kv, None), jnp.int32(0), token_layout(batch, page_size))[0]

    left = kv.copy()
    left[:, 0] = left[:, 2, 2:] = left[:, 3] = np.nan
    assert np.array_equal(run(q, left, batch)[:1], run(q, kv, batch)[:1])
