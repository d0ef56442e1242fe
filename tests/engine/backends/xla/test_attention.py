"""Attention, in each of its backends, against plain float64 attention, over random lengths and page layouts."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cache.storage import KVPages
from engine.backends.base.operands import AttentionConstants, Norm
from engine.backends.base.token_layout import NUM_TOKENS, START, pages_per_block, token_layout
from engine.interface.config import TILE_SIZE
from engine.step.inputs import StepBatch
from engine.step.shapes import StepShape
from tests.forward_steps import QUICK_TO_COMPILE
from tests.thoroughness import IS_FULL, some

NUM_LAYERS, HEAD_DIM = 2, 16
COMPILER_OPTIONS = None if IS_FULL else QUICK_TO_COMPILE


def constants(num_heads, rotations, num_layers, **others):
    """Of layers that are all alike, unless `others` says more."""
    usual = {
        "num_heads": num_heads,
        "scale": HEAD_DIM**-0.5,
        "rotations": jnp.asarray(rotations),
        "tables": np.zeros(num_layers, np.int32),
        "windows": np.zeros(num_layers, np.int32),
    }
    return AttentionConstants(**usual | others)


def attend(backend, qkv, kv, batch, layer, constants):
    """The outputs and the pages of one layer, inside a program."""
    layout = token_layout(
        batch.rows, batch.page_table,
        num_tiles=len(batch.tile_tokens), tile_size=TILE_SIZE, page_size=kv.page_size,
    )  # fmt: skip
    return backend.attention(qkv, kv, jnp.int32(layer), layout, constants)


def make_run(page_size, num_heads, layer, backend):
    """A compiled function of qkv, pages and batch, which gives the outputs and the pages; nothing is rotated."""

    @partial(jax.jit, compiler_options=COMPILER_OPTIONS)
    def run(qkv, kv, batch):
        identity = jnp.concatenate([jnp.ones((len(qkv), HEAD_DIM // 2)), jnp.zeros((len(qkv), HEAD_DIM // 2))], axis=1)
        flat, of_layers = qkv.reshape(len(qkv), -1), constants(num_heads, identity[None], len(kv))
        out, pages = attend(backend, flat, KVPages(kv, None), batch, layer, of_layers)
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
@pytest.mark.parametrize("seed", some(range(2), 1))
def test_it_equals_plain_attention(num_heads, page_size, seed, backend):
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
    out, new_kv = make_run(page_size, num_heads, layer, backend)(qkv, kv, batch)
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
    if backend.name == "xla":  # native kernels leave padding as it was
        assert np.isfinite(out).all()


@pytest.mark.parametrize("longer", [6, 300])
def test_a_row_is_the_same_bit_for_bit_beside_any_neighbour(longer, backend):
    random = np.random.default_rng(0)
    page_size, max_pages = 4, 3 * pages_per_block(4)
    kv = random.standard_normal((1, 1 + 2 * max_pages, 2, 1, page_size, HEAD_DIM)).astype(np.float32)
    qkv = random.standard_normal((2, 3, HEAD_DIM)).astype(np.float32)
    run = make_run(page_size, 1, 0, backend)

    def outputs(lengths):
        batch = StepBatch.padding(StepShape(2, 0), 1, max_pages)
        batch.page_table[:] = 1 + np.arange(2 * max_pages).reshape(2, -1)
        batch.rows[:, START], batch.rows[:, NUM_TOKENS] = lengths, 1
        return run(qkv, kv, batch)[0]

    assert np.array_equal(outputs([5, 5])[0], outputs([5, longer])[0])


@pytest.mark.parametrize("num_tiles", [0, 1])
def test_a_nan_that_another_request_left_reaches_nobody(num_tiles, backend):
    """In the null page, in the rest of a page that changed hands, and in pages behind the row's end."""
    random = np.random.default_rng(0)
    page_size, max_pages = 4, 3 * pages_per_block(4)
    shape = StepShape(1 - num_tiles, num_tiles)
    kv = random.standard_normal((1, 1 + max_pages, 2, 1, page_size, HEAD_DIM)).astype(np.float32)
    qkv = random.standard_normal((shape.num_tokens, 3, HEAD_DIM)).astype(np.float32)
    batch = StepBatch.padding(shape, 1, max_pages)
    batch.page_table[0, :3] = [1, 2, 3]
    batch.rows[0, START], batch.rows[0, NUM_TOKENS] = 5, 1
    run = make_run(page_size, 1, 0, backend)
    left = kv.copy()
    left[:, 0] = left[:, 2, :, :, 2:] = left[:, 3] = np.nan
    clean = run(qkv, kv, batch)[0][:1]
    assert np.isfinite(clean).all()
    assert np.array_equal(run(qkv, left, batch)[0][:1], clean)


def test_queries_and_keys_are_rotated_and_values_are_not(backend):
    """Feature i with feature i + 8, by the angle of the token; both backends write the same keys."""
    random = np.random.default_rng(0)
    shape, page_size = StepShape(3, 0), 4
    batch = StepBatch.padding(shape, 1, pages_per_block(page_size))
    batch.page_table[:, 0] = [1, 2, 3]
    batch.rows[:, START], batch.rows[:, NUM_TOKENS] = [0, 1, 3], 1
    qkv = random.standard_normal((3, 3 * HEAD_DIM)).astype(np.float32)
    angles = random.uniform(-3, 3, (3, HEAD_DIM // 2))
    rotations = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    kv = np.zeros((1, 4, 2, 1, page_size, HEAD_DIM), np.float32)

    @partial(jax.jit, compiler_options=COMPILER_OPTIONS)
    def run(qkv, kv):
        out, pages = attend(backend, qkv, KVPages(kv, None), batch, 0, constants(1, rotations[None], len(kv)))
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


@pytest.mark.parametrize("head_dim", [16, 64, 80, 96])
def test_in_pages_of_int8_large_features_take_no_bits_from_the_others(head_dim, backend):
    """One feature in 16 of keys and values is 30 times as large as the others, and queries do not look at it."""
    random = np.random.default_rng(0)
    num_heads, num_kv_heads, length, page_size = 4, 2, TILE_SIZE, 32
    num_pages = pages_per_block(page_size)
    batch = StepBatch.padding(StepShape(0, 1), 1, num_pages)
    batch.page_table[:] = 1 + np.arange(num_pages)
    batch.rows[:, NUM_TOKENS] = length
    q, k, v = (
        random.standard_normal((length, heads, head_dim)).astype(np.float32)
        for heads in (num_heads, num_kv_heads, num_kv_heads)
    )
    is_large = np.arange(head_dim) % 16 == 3
    q[..., is_large], k[..., is_large], v[..., is_large] = 0.0, 30.0 * k[..., is_large], 30.0 * v[..., is_large]

    @partial(jax.jit, compiler_options=COMPILER_OPTIONS)
    def run(qkv, kv):
        rotations = jnp.zeros((1, length, 0))
        of_layers = constants(num_heads, rotations, 1, tables=np.array([-1], np.int32), scale=head_dim**-0.5)
        return attend(backend, qkv, kv, batch, 0, of_layers)

    size = (1, 1 + num_pages, 2, num_kv_heads, page_size, head_dim)
    pages = KVPages(np.zeros(size, np.int8), np.zeros(size[:-1], np.float32))
    out, _ = run(np.concatenate([q, k, v], axis=1).reshape(length, -1), pages)

    def rounded(x):
        scales = np.abs(x).max(axis=-1, keepdims=True) / 127
        return np.rint(x / scales) * scales

    def expected(keys, values):
        keys, values = (np.repeat(each, num_heads // num_kv_heads, axis=1) for each in (keys, values))
        scores = np.einsum("qhd,khd->hqk", q, keys) * head_dim**-0.5
        weights = np.exp(scores) * np.tri(length)
        return np.einsum("hqk,khd->qhd", weights / weights.sum(axis=-1, keepdims=True), values)

    want, as_they_are = expected(k, v), expected(rounded(k), rounded(v))
    error = np.asarray(out).reshape(want.shape) - want
    assert np.abs(as_they_are - want)[..., ~is_large].mean() > 2 * np.abs(error)[..., ~is_large].mean()


def rms_normed(x, weight, epsilon=1e-5):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + epsilon) * weight


FAMILIES = {
    "a window": {"windows": [40, 0]},
    "a window of one token": {"windows": [1, 0]},
    "a window in another layer": {"windows": [0, 40]},
    "a soft cap and a scale": {"softcap": 3.0, "scale": 0.7},
    "sinks": {"sinks": True},
    "sinks and a window of one token": {"sinks": True, "windows": [1, 0]},
    "norms of each head": {"norms": "each"},
    "norms over all heads": {"norms": "all"},
    "rotation of a part": {"rotary_dim": 8},
    "no rotation in this layer": {"tables": [-1, 0]},
    "no rotation in any layer": {"tables": [-1, -1]},
    "a table of its own": {"tables": [1, 0], "num_tables": 2},
    "all at once": {
        "windows": [40, 0], "softcap": 3.0, "scale": 0.7, "norms": "each", "rotary_dim": 8, "tables": [1, -1],
        "num_tables": 2, "sinks": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_what_families_of_models_need(family, backend):
    """A prompt in two tiles and then decode rows, in layer 0, against float64 attention over the whole sequence."""
    wanted = FAMILIES[family]
    random = np.random.default_rng(1)
    num_heads, num_kv_heads, page_size, length = 4, 2, 16, 2 * TILE_SIZE
    rotary_dim, norms = wanted.get("rotary_dim", HEAD_DIM), wanted.get("norms")
    angles = random.uniform(-3, 3, (wanted.get("num_tables", 1), length, rotary_dim // 2))
    q_weight, k_weight = (
        random.uniform(0.5, 1.5, (NUM_LAYERS, HEAD_DIM * (heads if norms == "all" else 1))).astype(np.float32)
        for heads in (num_heads, num_kv_heads)
    )
    options = {
        "tables": np.array(wanted.get("tables", [0, 0]), np.int32),
        "windows": np.array(wanted.get("windows", [0, 0]), np.int32),
        "softcap": wanted.get("softcap", 0.0),
        "scale": wanted.get("scale", HEAD_DIM**-0.5),
        "sinks": jnp.asarray([[-2.0, 0.5, 3.0, 90.0], [0.0] * 4]) if "sinks" in wanted else None,
        "q_norm": Norm(jnp.asarray(q_weight), 1e-5) if norms else None,
        "k_norm": Norm(jnp.asarray(k_weight), 1e-5) if norms else None,
    }
    num_pages = 2 * pages_per_block(page_size)
    qkv = random.standard_normal((length, num_heads + 2 * num_kv_heads, HEAD_DIM)).astype(np.float32)
    kv = np.zeros((NUM_LAYERS, 1 + num_pages, 2, num_kv_heads, page_size, HEAD_DIM), np.float32)
    table = 1 + random.permutation(num_pages)

    @partial(jax.jit, compiler_options=COMPILER_OPTIONS)
    def run(qkv, kv, batch, rotations):
        of_layers = constants(num_heads, rotations, NUM_LAYERS, **options)
        return attend(backend, qkv, KVPages(kv, None), batch, 0, of_layers)

    def step(shape, starts, lengths, kv, tokens):
        batch = StepBatch.padding(shape, 1, num_pages)
        batch.rows[:, START], batch.rows[:, NUM_TOKENS] = starts, lengths
        batch.page_table[:] = table
        turns = np.concatenate([np.cos(angles[:, tokens]), np.sin(angles[:, tokens])], axis=2).astype(np.float32)
        out, pages = run(qkv[tokens].reshape(len(tokens), -1), kv, batch, turns)
        return np.asarray(out), np.asarray(pages.data)

    num_decoded = 3
    end = length - num_decoded
    whole, kv = step(StepShape(0, 2), [0, TILE_SIZE], [TILE_SIZE, end - TILE_SIZE], kv, np.arange(length))
    outputs = [whole[:end]]
    for position in range(end, length):
        out, kv = step(StepShape(1, 0), [position], [1], kv, np.array([position]))
        outputs.append(out)

    q, k, v = np.split(qkv.astype(np.float64), [num_heads, num_heads + num_kv_heads], axis=1)
    if norms == "each":
        q, k = rms_normed(q, q_weight[0]), rms_normed(k, k_weight[0])
    elif norms == "all":
        q = rms_normed(q.reshape(length, -1), q_weight[0]).reshape(q.shape)
        k = rms_normed(k.reshape(length, -1), k_weight[0]).reshape(k.shape)

    def rotated(x):
        if options["tables"][0] < 0:
            return x
        half = rotary_dim // 2
        turned = (x[..., :half] + 1j * x[..., half:rotary_dim]) * np.exp(1j * angles[options["tables"][0]])[:, None]
        return np.concatenate([turned.real, turned.imag, x[..., rotary_dim:]], axis=-1)

    group = num_heads // num_kv_heads
    scores = np.einsum("qhd,khd->hqk", rotated(q), np.repeat(rotated(k), group, axis=1)) * options["scale"]
    if options["softcap"]:
        scores = options["softcap"] * np.tanh(scores / options["softcap"])
    distance = np.arange(length)[:, None] - np.arange(length)
    scores = np.where((distance >= 0) & (distance < (options["windows"][0] or length)), scores, -np.inf)
    sinks = np.full((num_heads, 1, 1), -np.inf) if options["sinks"] is None else np.asarray(options["sinks"])[0]
    scores = np.concatenate([scores, np.broadcast_to(sinks.reshape(-1, 1, 1), (num_heads, length, 1))], axis=2)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares = (shares / shares.sum(axis=-1, keepdims=True))[:, :, :-1]
    expected = np.einsum("hqk,khd->qhd", shares, np.repeat(v, group, axis=1)).reshape(length, -1)
    np.testing.assert_allclose(np.concatenate(outputs), expected, rtol=5e-5, atol=5e-5)
