"""Long calls of kernels, which pause where other runs want their turn: the same bits, and the others get it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engine.backends.base.patches import patches
from engine.backends.native.patch_attention import attend_patches
from engine.weights.packing import Format
from tests.engine.backends.native.support.calls import NOTHING, norm_product
from tests.engine.backends.native.support.matrices import make_matrix
from tests.engine.backends.native.support.steps import make_step
from tests.patience import PATIENCE_S

SIZE, NUM_ROWS = 1024, 4096  # four times as much work as a call does before it pauses
NUM_PATCHES, NUM_HEADS, HEAD_SIZE = 3072, 4, 32


def compiled(function: Callable[..., jax.Array], *arguments: np.ndarray) -> Callable[[], np.ndarray]:
    program = jax.jit(function).lower(*arguments).compile()
    return lambda: np.asarray(program(*arguments))


def product(num_rows: int, size: int) -> Callable[[], np.ndarray]:
    """A program of one product."""
    random = np.random.default_rng(5)
    matrix = make_matrix(random, Format.BFLOAT16, 1, size, size).packed
    rows = make_step([0] * num_rows).rows

    def multiply(x: jax.Array) -> jax.Array:
        return norm_product(x, rows, 0, NOTHING, matrix, norm_kind=0)

    return compiled(multiply, random.standard_normal((num_rows, size)).astype(np.float32))


def attention() -> Callable[[], np.ndarray]:
    """A program of the attention of patches."""

    def attend(qkv: jax.Array) -> jax.Array:
        seen = patches(NUM_PATCHES, jnp.int32(NUM_PATCHES - 5))
        return attend_patches(qkv, seen, num_heads=NUM_HEADS, scale=0.2, angles=None, is_exact=False)[:-5]

    width = 3 * NUM_HEADS * HEAD_SIZE
    return compiled(attend, np.random.default_rng(6).standard_normal((NUM_PATCHES, width)).astype(np.float32))


@contextmanager
def short_calls() -> Iterator[Callable[[], int]]:
    """Another run after the other, of a product that is short; what it gives says how many have ended."""
    multiply, is_over, count = product(8, 128), threading.Event(), 0

    def compute() -> None:
        nonlocal count
        while not is_over.is_set():
            multiply()
            count += 1

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield lambda: count
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize("make", [lambda: product(NUM_ROWS, SIZE), attention], ids=["product", "attention"])
def test_a_long_call_pauses_and_has_the_same_bits(make: Callable[[], Callable[[], np.ndarray]], variant: str) -> None:
    compute = make()
    alone, most, until = compute(), 0, time.monotonic() + PATIENCE_S
    with short_calls() as count:
        while most < 30:  # without a pause some end before and behind the long one
            assert time.monotonic() < until, f"at most {most} short calls have ended while a long one was computed"
            begun = count()
            beside = compute()
            most = max(most, count() - begun)
            np.testing.assert_array_equal(beside, alone)
