"""XTC: the top choices are left out but the least of them."""

import jax
import numpy as np
import pytest

from sampling.filters.xtc import xtc_mask
from sampling.host.params import SamplingParams
from tests.sampling import reference
from tests.sampling.agreement import assert_draws, assert_follows
from tests.sampling.batches import random_logits
from tests.sampling.reference import Request

mask_of = jax.jit(xtc_mask)


def left(weights: list[float], threshold: float, *, probability: float = 1.0, uniform: float = 0.0) -> list[int]:
    numbers = (np.array([number], np.float32) for number in (probability, threshold, uniform))
    return np.flatnonzero(mask_of(np.array([weights], np.float32), *numbers)[0]).tolist()


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        (0.9, [0, 1, 2, 3, 4]),  # none reaches it
        (0.45, [0, 1, 2, 3, 4]),  # one does, and is the least of them itself
        (0.3, [1, 2, 3, 4]),
        (0.125, [2, 3, 4]),
        (0.06, [3, 4]),
        (0.0, [3, 4]),  # what has no weight is no choice at all
    ],
)
def test_by_hand(threshold, expected):
    assert left([8.0, 5.0, 2.0, 1.0, 0.0], threshold) == expected


def test_of_equals_the_last_stays():
    assert left([1.0, 1.0, 1.0, 1.0], 0.2) == [3]
    assert left([4.0, 4.0, 1.0, 1.0], 0.3) == [1, 2, 3]


@pytest.mark.parametrize(
    ("probability", "uniform", "happens"),
    [(0.5, 0.49, True), (0.5, 0.5, False), (0.0, 0.0, False), (1.0, 1 - 2**-24, True)],
)
def test_the_coin(probability, uniform, happens):
    kept = left([8.0, 5.0, 2.0, 1.0], 0.1, probability=probability, uniform=uniform)
    assert kept == ([2, 3] if happens else [0, 1, 2, 3])


@pytest.mark.parametrize("vocab_size", [7, 100, 600])
def test_random_rows(vocab_size):
    weights = np.exp(random_logits(1, 20, vocab_size))
    weights[weights < 0.5] = 0.0
    weights[:, 3] = 1.0
    thresholds = np.geomspace(1e-3, 0.6, 20).astype(np.float32)
    mask = np.asarray(mask_of(weights, np.ones(20, np.float32), thresholds, np.zeros(20, np.float32)))
    for row in range(20):
        expected = reference.xtc(weights[row].astype(np.float64), float(thresholds[row]))
        assert np.array_equal(np.where(mask[row], weights[row], 0.0), expected)


def test_in_the_sampler(backend):
    requests = [
        Request(
            SamplingParams(xtc_probability=[0.3, 0.7, 1.0][index % 3], xtc_threshold=[0.02, 0.1, 0.0][index % 7 % 3])
        )
        for index in range(60)
    ]
    assert_follows(backend, requests, random_logits(2, 60, 600))


@pytest.mark.parametrize("probability", [0.4, 1.0])
def test_draws(backend, probability):
    assert_draws(backend, Request(SamplingParams(xtc_probability=probability, xtc_threshold=0.02, top_k=30)))


def test_the_best_alone_is_never_left_out(backend):
    requests = [Request(SamplingParams(xtc_probability=1.0, xtc_threshold=0.0, top_k=1))] * 60
    tokens = assert_follows(backend, requests, logits := random_logits(3, 60, 600))
    assert tokens.tolist() == logits.argmax(axis=1).tolist()
