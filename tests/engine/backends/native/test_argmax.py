"""The best token of each row of logits, as NumPy finds it."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backends.native.sampler import argmax

NUM_SLOTS = 4


@settings(max_examples=10)
@given(
    num_rows=st.integers(1, 5),
    vocab=st.one_of(st.integers(1, 200), st.sampled_from([4095, 4096, 4097, 9000])),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_first_of_the_largest(variant, num_rows, vocab, seed):
    random = np.random.default_rng(seed)
    logits = random.integers(-50, 50, (num_rows, vocab)).astype(np.float32)  # many are equal
    logits[random.random(logits.shape) < 0.1] = -np.inf
    slots = random.integers(-1, NUM_SLOTS + 2, num_rows).astype(np.int32)
    is_real = (slots >= 0) & (slots < NUM_SLOTS)
    logits[~is_real] = np.nan
    got = np.asarray(argmax(logits, slots, NUM_SLOTS))
    np.testing.assert_array_equal(got[is_real], logits[is_real].argmax(axis=1))


@pytest.mark.parametrize("bad", [0, 70, 4096, 8999])  # in vectors and behind them, in the first part and in others
def test_a_row_with_nan_has_none(variant, bad):
    logits = np.random.default_rng(0).standard_normal((3, 9000)).astype(np.float32)
    logits[1, bad] = np.nan
    logits[2, 4500] = np.inf
    got = np.asarray(argmax(logits, np.zeros(3, np.int32), NUM_SLOTS))
    assert got.tolist() == [logits[0].argmax(), 9000, 4500]


def test_of_nothing_but_minus_infinity_the_first(variant):
    logits = np.full((1, 5000), -np.inf, np.float32)
    assert np.asarray(argmax(logits, np.zeros(1, np.int32), NUM_SLOTS)).tolist() == [0]


def test_more_rows_than_the_threads_take_at_once(variant):
    logits = np.random.default_rng(0).integers(0, 2, (2**20 + 3, 3)).astype(np.float32)
    got = np.asarray(argmax(logits, np.zeros(len(logits), np.int32), NUM_SLOTS))
    np.testing.assert_array_equal(got, logits.argmax(axis=1))


def test_a_wrong_call_is_an_error(variant):
    with pytest.raises(jax.errors.JaxRuntimeError, match="eagre: "):
        jax.block_until_ready(argmax(np.zeros((3, 8), np.float32), np.zeros(2, np.int32), NUM_SLOTS))
