"""Attention over pages whose keys are their values, as latents are, against pages that hold both."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from cache.storage import KVPages
from engine.backends.base.operands import TokenIndex
from tests.engine.backends.native.support.attention_cases import (
    NUM_LAYERS,
    Shape,
    angles,
    as_in_pages,
    make_table,
    run,
)
from tests.engine.backends.native.support.steps import Step, make_step

KINDS = ("float32", "bfloat16", "int16", "int8")
SHAPES = [
    Shape(group=4, head_dim=80, num_kv_heads=1, page_size=16),
    Shape(group=20, head_dim=576, num_kv_heads=1, page_size=32, rotary_dim=64, scale=0.1),
    Shape(group=3, head_dim=320, num_kv_heads=1, page_size=24, window=70),
]


def pages_of_zeros(shape: Shape, num_pages: int, num_parts: int) -> KVPages:
    size = (NUM_LAYERS, num_pages, num_parts, shape.num_kv_heads, shape.page_size, shape.head_dim)
    scales = np.zeros(size[:-1], np.float32) if shape.has_scales else None
    return KVPages(np.zeros(size, jnp.dtype(shape.kind)), scales)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_equals_attention_whose_values_are_the_keys(variant, kind, shape):
    random = np.random.default_rng(3)
    shape = replace(shape, kind=kind, is_rotated=False)
    step = make_step([], [(0, 60), (60, 60), (0, 9)], 60)
    table, num_pages = make_table(random, step, shape.page_size)
    table[0] = table[1]
    keys = random.standard_normal((step.num_tokens, shape.head_dim)).astype(np.float32)
    queries = random.standard_normal((step.num_tokens, shape.num_heads * shape.head_dim)).astype(np.float32)
    rotations = angles(random, step.num_tokens, shape)
    latents = np.concatenate([queries, keys], axis=1)
    out, pages = run(shape, latents, rotations, step, table, 1, pages_of_zeros(shape, num_pages, 1))
    both = np.concatenate([latents, keys], axis=1)
    expected, of_both = run(shape, both, rotations, step, table, 1, pages_of_zeros(shape, num_pages, 2))
    real = step.real()
    np.testing.assert_array_equal(out[real], expected[real])
    assert pages.data.nbytes == of_both.data.nbytes // 2
    assert np.abs(out[real]).max() > 0.1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_token_is_the_same_in_a_tile_and_alone(variant, kind, shape):
    random = np.random.default_rng(4)
    shape, num_tokens = replace(shape, kind=kind), 70
    whole = make_step([], [(0, num_tokens)], num_tokens)
    table, num_pages = make_table(random, whole, shape.page_size)
    joined = random.standard_normal((num_tokens, (shape.num_heads + 1) * shape.head_dim)).astype(np.float32)
    rotations = angles(random, num_tokens, shape)
    expected, after = run(shape, joined, rotations, whole, table, 0, pages_of_zeros(shape, num_pages, 1))
    kv, outputs = pages_of_zeros(shape, num_pages, 1), []
    for token in range(num_tokens):
        which = slice(token, token + 1)
        out, kv = run(shape, joined[which], rotations[which], make_step([token], [], 1), table, 0, kv)
        outputs.append(out)
    np.testing.assert_array_equal(np.concatenate(outputs), expected)
    assert kv.data.tobytes() == after.data.tobytes()


INDEXED = Shape(group=3, head_dim=96, num_kv_heads=1, page_size=24, is_rotated=False, rotary_dim=0)
INDEX_SIZE, NUM_PICKED = 20, 75  # the last features of a vector in the pages; tokens


class Indexed:
    """Random tokens of a text, and what an index has of them."""

    def __init__(self, num_tokens: int) -> None:
        random = np.random.default_rng(6)
        heads = random.standard_normal((num_tokens, INDEXED.num_heads + 1, INDEXED.head_dim)).astype(np.float32)
        heads[:, :-1, -INDEX_SIZE:] = 0.0
        self.joined = heads.reshape(num_tokens, -1)
        self.queries = random.standard_normal((num_tokens, 5, INDEX_SIZE)).astype(np.float32)
        self.weights = random.standard_normal((num_tokens, 5)).astype(np.float32)

    def run(self, kind: str, step: Step, tokens: np.ndarray, table: np.ndarray, kv: KVPages):
        """Computes these tokens, which are the real ones of a step."""
        joined, queries, weights = (
            np.full((step.num_tokens, *each.shape[1:]), np.nan, np.float32)
            for each in (self.joined, self.queries, self.weights)
        )
        real = step.real()
        joined[real], queries[real], weights[real] = self.joined[tokens], self.queries[tokens], self.weights[tokens]
        index = TokenIndex(jnp.asarray(queries), jnp.asarray(weights), NUM_PICKED)
        rotations = np.zeros((step.num_tokens, 0), np.float32)
        out, kv = run(replace(INDEXED, kind=kind), joined, rotations, step, table, 1, kv, index)
        return out[real], kv


def text_of(table: np.ndarray, kv: KVPages, num_tokens: int) -> np.ndarray:
    """The vectors of a text in its pages, float64[num_tokens, head_dim]."""
    positions = np.arange(num_tokens)
    at = 1, table[positions // kv.page_size], 0, 0, positions % kv.page_size
    vectors = kv.data[at].astype(np.float64)
    if kv.scales is None:
        return vectors
    kind = str(kv.data.dtype)
    return as_in_pages(vectors * kv.scales[at][:, None], replace(INDEXED, kind=kind))  # which undoes itself


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_picks_the_tokens_that_queries_see(variant, kind):
    num_tokens = 170
    text, step = Indexed(num_tokens), make_step([], [(0, num_tokens)], num_tokens)
    table, num_pages = make_table(np.random.default_rng(7), step, INDEXED.page_size)
    kv = pages_of_zeros(replace(INDEXED, kind=kind), num_pages, 1)
    out, kv = text.run(kind, step, np.arange(num_tokens), table, kv)
    stored = text_of(table[0], kv, num_tokens)
    products = np.einsum("qhd,kd->qhk", text.queries.astype(np.float64), stored[:, -INDEX_SIZE:])
    scores = np.einsum("qhk,qh->qk", np.maximum(products, 0.0), text.weights.astype(np.float64))
    scores = np.where(np.tri(num_tokens, dtype=bool), scores, -np.inf)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :NUM_PICKED]  # of scores that are 0, the first ones
    is_seen = np.isfinite(scores) & (best[..., None] == np.arange(num_tokens)).any(axis=1)
    queries = text.joined.reshape(num_tokens, -1, INDEXED.head_dim)[:, :-1].astype(np.float64)
    attended = np.einsum("qhd,kd->qhk", queries, stored) * INDEXED.score_scale
    assert is_seen.sum(axis=1).tolist() == [min(NUM_PICKED, count + 1) for count in range(num_tokens)]
    attended = np.where(is_seen[:, None], attended, -np.inf)
    shares = np.exp(attended - attended.max(axis=-1, keepdims=True))
    expected = np.einsum("qhk,kd->qhd", shares / shares.sum(axis=-1, keepdims=True), stored)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-5 if kind == "float32" else 0.03)


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_that_are_picked_are_the_same_in_chunks_alone_and_beside_others(variant, kind):
    num_tokens, shape = 170, replace(INDEXED, kind=kind)
    text, whole = Indexed(num_tokens), make_step([], [(0, num_tokens)], num_tokens)
    table, num_pages = make_table(np.random.default_rng(8), whole, shape.page_size)
    expected, _ = text.run(kind, whole, np.arange(num_tokens), table, pages_of_zeros(shape, num_pages, 1))
    kv, outputs, at = pages_of_zeros(shape, num_pages, 1), [], 0
    for count in (1, 60, 17, 40, 1, 1, 50):
        step = make_step([at], [], 1) if count == 1 else make_step([], [(at, count)], 64)
        out, kv = text.run(kind, step, np.arange(at, at + count), table, kv)
        outputs.append(out)
        at += count
    np.testing.assert_array_equal(np.concatenate(outputs), expected)
    rows = make_step([169, 60, 168, 150], [(100, 30)], 40)  # all of the same pages, whose tokens are written anew
    tokens = np.concatenate([[169, 60, 168, 150], np.arange(100, 130)])
    out, _ = text.run(kind, rows, tokens, np.repeat(table, 5, axis=0), kv)
    np.testing.assert_array_equal(out, expected[tokens])
