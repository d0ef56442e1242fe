"""Attention over pages whose keys are their values, as latents are, against pages that hold both."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from cache.storage import KVPages
from tests.engine.backends.native.support.attention_cases import NUM_LAYERS, Shape, angles, make_table, run
from tests.engine.backends.native.support.steps import make_step

KINDS = ("float32", "bfloat16", "int8")
SHAPES = [
    Shape(group=4, head_dim=80, num_kv_heads=1, page_size=16),
    Shape(group=20, head_dim=576, num_kv_heads=1, page_size=32, rotary_dim=64, scale=0.1),
    Shape(group=3, head_dim=320, num_kv_heads=1, page_size=24, window=70),
]


def pages_of_zeros(shape: Shape, num_pages: int, num_parts: int) -> KVPages:
    size = (NUM_LAYERS, num_pages, num_parts, shape.num_kv_heads, shape.page_size, shape.head_dim)
    scales = np.zeros(size[:-1], np.float32) if shape.kind == "int8" else None
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
