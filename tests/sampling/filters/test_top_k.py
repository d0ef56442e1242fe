"""top-k: the k best tokens."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampling.filters.top_k import top_k_mask
from sampling.host.params import SamplingParams
from tests.sampling.agreement import assert_draws, assert_follows
from tests.sampling.batches import random_logits
from tests.sampling.reference import Request

mask_of = jax.jit(top_k_mask)


def kept(logits: list[float], k: int) -> list[int]:
    return np.flatnonzero(mask_of(np.array([logits], np.float32), np.array([k], np.int32))[0]).tolist()


@pytest.mark.parametrize(
    ("k", "expected"), [(1, [3]), (2, [1, 3]), (3, [1, 3, 4]), (6, [0, 1, 2, 3, 4, 5]), (5, [0, 1, 2, 3, 4, 5]),
                        (0, [0, 1, 2, 3, 4, 5, 6]), (7, [0, 1, 2, 3, 4, 5, 6]), (2**31 - 1, [0, 1, 2, 3, 4, 5, 6])]
)  # fmt: skip
def test_by_hand(k, expected):
    assert kept([-1.0, 4.0, -1.0, 5.0, 0.5, -1.0, -7.0], k) == expected  # what ties with the last one stays with it


def test_zeros_of_both_signs_tie_and_infinities_have_their_place():
    assert kept([0.0, -0.0, 1.0, -1.0], 2) == [0, 1, 2]
    assert kept([np.inf, 3.0, -np.inf, 3e38], 1) == [0]
    assert kept([np.inf, 3.0, -np.inf, 3e38], 3) == [0, 1, 3]
    assert kept([-3e38, -np.inf, -np.inf, -np.inf], 1) == [0]


@settings(max_examples=50)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_subnormal=False), min_size=8, max_size=8), st.integers(1, 9))
def test_any_row_is_cut_as_sorting_cuts_it(logits, k):
    assert kept(logits, k) == [i for i, logit in enumerate(logits) if logit >= sorted(logits)[-min(k, 8)]]


@pytest.mark.parametrize("vocab_size", [100, 600])
def test_every_row_has_a_k_of_its_own(vocab_size):
    logits = random_logits(1, 16, vocab_size)
    k = np.array([0, 1, 2, 3, 5, 8, 13, 50, 99, 100, 101, 599, 600, 601, 10**6, -1], np.int32)
    expected = np.where((k < 1) | (k > vocab_size), vocab_size, k)
    assert np.asarray(mask_of(logits, k)).sum(axis=1).tolist() == expected.tolist()


def test_in_the_sampler(backend):
    requests = [Request(SamplingParams(top_k=[1, 2, 5, 40, 10**6, -1][index % 6])) for index in range(60)]
    tokens = assert_follows(backend, requests, logits := random_logits(2, 60, 600))
    assert tokens[0::6].tolist() == logits[0::6].argmax(axis=1).tolist()


def test_draws(backend):
    assert_draws(backend, Request(SamplingParams(top_k=12, temperature=1.5)))
