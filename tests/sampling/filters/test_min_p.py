"""min-p: a share of the best token's probability."""

import jax
import numpy as np
import pytest

from sampling.filters.min_p import min_p_mask
from sampling.host.params import SamplingParams
from tests.sampling.agreement import assert_draws, assert_follows
from tests.sampling.batches import random_logits
from tests.sampling.reference import Request

mask_of = jax.jit(min_p_mask)


@pytest.mark.parametrize(
    ("min_p", "expected"), [(0.0, [0, 1, 2, 3]), (0.05, [0, 1, 2]), (0.2, [0, 1]), (0.6, [1]), (1.0, [1])]
)
def test_by_hand(min_p, expected):
    scaled = np.log(np.array([[0.5, 1.0, 0.1, 0.01]], np.float32))
    assert np.flatnonzero(mask_of(scaled, np.array([min_p], np.float32))[0]).tolist() == expected


@pytest.mark.parametrize("min_p", [1e-30, 1e-38, 1e-40, 1e-45, 1e-50])
def test_next_to_nothing_keeps_the_best_and_all_that_is_near(backend, min_p):
    requests = [Request(SamplingParams(min_p=min_p))] * 60
    assert_follows(backend, requests, random_logits(1, 60, 600))


def test_it_is_of_the_probabilities_after_temperature(backend):
    logits = np.tile(np.log(np.array([1.0, 0.3, 0.001, 0.0005, 0.0001, 0.0001, 0.0001], np.float32)), (60, 1))
    cold = assert_follows(backend, [Request(SamplingParams(min_p=0.2, temperature=0.5))] * 60, logits)
    warm = assert_follows(backend, [Request(SamplingParams(min_p=0.2, temperature=1.0))] * 60, logits)
    assert set(cold.tolist()) == {0}
    assert set(warm.tolist()) == {0, 1}


def test_in_the_sampler(backend):
    requests = [
        Request(SamplingParams(min_p=[0.01, 0.1, 0.5, 1.0][index % 4], temperature=0.5 + index % 3 * 0.7))
        for index in range(60)
    ]
    tokens = assert_follows(backend, requests, logits := random_logits(2, 60, 600))
    assert tokens[3::4].tolist() == logits[3::4].argmax(axis=1).tolist()


def test_draws(backend):
    assert_draws(backend, Request(SamplingParams(min_p=0.08)))
