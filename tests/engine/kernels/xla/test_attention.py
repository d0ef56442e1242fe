"""Attention, in each of its bodies, against plain float64 attention, over random lengths and page layouts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cache.storage import KVPages
from engine.border.config import TILE_SIZE
from engine.kernels.xla.attention import attend, pages_per_block, token_layout
from engine.step.batch import NUM_TOKENS, START, StepBatch
from engine.step.shapes import StepShape

NUM_LAYERS, HEAD_DIM = 2, 16


def make_run(page_size, num_heads, layer, is_native):
    """A compiled function of qkv, pages and batch, which gives the outputs and the pages; nothing is rotated."""

    @jax.jit
    def run(qkv, kv, batch):
        identity = jnp.concatenate([jnp.ones((len(qkv), HEAD_DIM // 2)), jnp.zeros((len(qkv), HEAD_DIM // 2))], axis=1)
        layout = token_layout(batch, page_size, is_native=is_native)
        flat = qkv.reshape(len(qkv), -1)
        out, pages = attend(flat, identity, KVPages(kv, None), jnp.int32(layer), layout, num_heads=num_heads)
        return out, pages.data

    return lambda *arrays: tuple(map(np.asarray, run(*arrays)))


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
def test_it_equals_plain_attention(num_heads, page_size, seed, is_native):
    random = np.random.default_rng(seed)
    num_kv_heads, max_pages = 3, 3 * pages_per_block(page_size)
    shape = StepShape(num_decode_rows=4, num_tiles=3)
    num_real = [3, 2]  # the last decode row and the last tile are padding
    num_pages = 1 + max_pages * 7
    kv = random.standard_normal((NUM_LAYERS, num_pages, 2, num_kv_heads, page_size, HEAD_DIM)).astype(np.float32)
    batch = StepBatch.padding(shape, 1, max_pages)
    free_pages = random.permutation(np.arange(1, num_pages))
    limit = max_pages * page_size
    for row in [*range(num_real[0]), *range(4, 4 + num_real[1])]:
        length = 1 if row < 4 else int(random.integers(1, TILE_SIZE + 1))
        batch.rows[row, START] = random.integers(0, limit - length)
        batch.rows[row, NUM_TOKENS] = length
        batch.page_table[row], free_pages = free_pages[:max_pages], free_pages[max_pages:]
    qkv = random.standard_normal((shape.num_tokens, num_heads + 2 * num_kv_heads, HEAD_DIM)).astype(np.float32)
    q, k, v = np.split(qkv, [num_heads, num_heads + num_kv_heads], axis=1)
    layer = seed % NUM_LAYERS
    out, new_kv = make_run(page_size, num_heads, layer, is_native)(qkv, kv, batch)
    # [layer, page, token, 2, head, feature]
    kv, new_kv = np.moveaxis(kv, 4, 2), np.moveaxis(new_kv, 4, 2)
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
    if not is_native:  # which leaves padding as it was
        assert np.isfinite(out).all()


@pytest.mark.parametrize("longer", [6, 300])
def test_a_row_is_the_same_bit_for_bit_beside_any_neighbour(longer, is_native):
    random = np.random.default_rng(0)
    page_size, max_pages = 4, 3 * pages_per_block(4)
    kv = random.standard_normal((1, 1 + 2 * max_pages, 2, 1, page_size, HEAD_DIM)).astype(np.float32)
    qkv = random.standard_normal((2, 3, HEAD_DIM)).astype(np.float32)
    run = make_run(page_size, 1, 0, is_native)

    def outputs(lengths):
        batch = StepBatch.padding(StepShape(2, 0), 1, max_pages)
        batch.page_table[:] = 1 + np.arange(2 * max_pages).reshape(2, -1)
        batch.rows[:, START], batch.rows[:, NUM_TOKENS] = lengths, 1
        return run(qkv, kv, batch)[0]

    assert np.array_equal(outputs([5, 5])[0], outputs([5, longer])[0])


@pytest.mark.parametrize("num_tiles", [0, 1])
def test_a_nan_that_another_request_left_reaches_nobody(num_tiles, is_native):
    """In the null page, in the rest of a page that changed hands, and in pages behind the row's end."""
    random = np.random.default_rng(0)
    page_size, max_pages = 4, 3 * pages_per_block(4)
    shape = StepShape(1 - num_tiles, num_tiles)
    kv = random.standard_normal((1, 1 + max_pages, 2, 1, page_size, HEAD_DIM)).astype(np.float32)
    qkv = random.standard_normal((shape.num_tokens, 3, HEAD_DIM)).astype(np.float32)
    batch = StepBatch.padding(shape, 1, max_pages)
    batch.page_table[0, :3] = [1, 2, 3]
    batch.rows[0, START], batch.rows[0, NUM_TOKENS] = 5, 1
    run = make_run(page_size, 1, 0, is_native)
    left = kv.copy()
    left[:, 0] = left[:, 2, :, :, 2:] = left[:, 3] = np.nan
    clean = run(qkv, kv, batch)[0][:1]
    assert np.isfinite(clean).all()
    assert np.array_equal(run(qkv, left, batch)[0][:1], clean)


def test_queries_and_keys_are_rotated_and_values_are_not(is_native):
    """Feature i with feature i + 8, by the angle of the token; both bodies write the same keys."""
    random = np.random.default_rng(0)
    shape, page_size = StepShape(3, 0), 4
    batch = StepBatch.padding(shape, 1, pages_per_block(page_size))
    batch.page_table[:, 0] = [1, 2, 3]
    batch.rows[:, START], batch.rows[:, NUM_TOKENS] = [0, 1, 3], 1
    qkv = random.standard_normal((3, 3 * HEAD_DIM)).astype(np.float32)
    angles = random.uniform(-3, 3, (3, HEAD_DIM // 2))
    rotations = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    kv = np.zeros((1, 4, 2, 1, page_size, HEAD_DIM), np.float32)

    @jax.jit
    def run(qkv, kv):
        layout = token_layout(batch, page_size, is_native=is_native)
        out, pages = attend(qkv, rotations, KVPages(kv, None), jnp.int32(0), layout, num_heads=1)
        return out, pages.data

    out, pages = map(np.asarray, run(qkv, kv))
    q, k, v = np.split(qkv.astype(np.float64), 3, axis=1)

    def rotated(x):
        turned = (x[:, : HEAD_DIM // 2] + 1j * x[:, HEAD_DIM // 2 :]) * np.exp(1j * angles)
        return np.concatenate([turned.real, turned.imag], axis=1)

    offsets = [0, 1, 3]
    np.testing.assert_allclose(pages[0, [1, 2, 3], 0, 0, offsets], rotated(k), rtol=0, atol=1e-6)
    assert np.array_equal(pages[0, [1, 2, 3], 1, 0, offsets], v.astype(np.float32))
    for row, offset in enumerate(offsets):
        keys, values = pages[0, row + 1, :, 0, : offset + 1].astype(np.float64)
        expected = reference(rotated(q)[row][None], keys[:, None], values[:, None])[0]
        np.testing.assert_allclose(out[row], expected, rtol=2e-5, atol=2e-5)
