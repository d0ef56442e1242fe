"""top-nσ: what lies within so many standard deviations below the best."""

import jax
import numpy as np
import pytest

from sampling.filters.top_n_sigma import top_n_sigma_mask
from sampling.host.params import SamplingParams
from tests.sampling.agreement import assert_draws, assert_follows
from tests.sampling.batches import random_logits
from tests.sampling.reference import Request

mask_of = jax.jit(top_n_sigma_mask)


def kept(logits: list[float], n: float) -> list[int]:
    return np.flatnonzero(mask_of(np.array([logits], np.float32), np.array([n], np.float32))[0]).tolist()


@pytest.mark.parametrize(
    ("n", "expected"),
    [(0.1, [8]), (1.9, [8]), (2.0, range(2, 9)), (3.9, range(2, 9)), (4.0, range(1, 9)), (0.0, range(10))],
)
def test_by_hand(n, expected):
    """The deviation is 2: what is banned counts neither for it nor for the mean."""
    assert kept([-np.inf, -4.0, *[0.0] * 6, 4.0, -np.inf], n) == list(expected)


@pytest.mark.parametrize("vocab_size", [7, 100, 600])
def test_random_rows_with_bans(vocab_size):
    logits = random_logits(1, 8, vocab_size)
    logits[np.random.default_rng(2).random(logits.shape) < 0.3] = -np.inf
    logits[:, 1] = 1.0
    n = np.array([0.1, 0.5, 1.0, 1.5, 2.0, 3.0, 1000.0, 0.0], np.float32)
    mask = np.asarray(mask_of(logits, n))
    for row in range(7):
        exact = logits[row].astype(np.float64)
        left = exact[exact > -np.inf]
        expected = exact >= exact.max() - n[row] * np.sqrt(((left - left.mean()) ** 2).mean())
        assert np.array_equal(mask[row], expected)
    assert mask[7].all()


def test_one_token_left_and_all_equal():
    assert kept([-np.inf, 2.0, -np.inf], 0.001) == [1]
    assert kept([2.0] * 7, 0.001) == list(range(7))


def test_temperature_changes_nothing_of_what_is_kept(backend):
    logits = np.broadcast_to(random_logits(3, 1, 600, spread=1.0), (60, 600))
    exact = logits[0].astype(np.float64)
    expected = set(np.flatnonzero(exact >= exact.max() - exact.std()).tolist())
    for temperature in (0.1, 2.0):
        requests = [Request(SamplingParams(top_n_sigma=1.0, temperature=temperature))] * 60
        assert set(assert_follows(backend, requests, logits).tolist()) <= expected


def test_in_the_sampler(backend):
    requests = [
        Request(SamplingParams(
            top_n_sigma=[0.3, 1.0, 2.0, 1000.0][index % 4], temperature=0.5 + index % 3 * 0.7, bad_words=((index,),)
        ))
        for index in range(60)
    ]  # fmt: skip
    assert_follows(backend, requests, random_logits(4, 60, 600))


def test_draws(backend):
    assert_draws(backend, Request(SamplingParams(top_n_sigma=2.0)))
