"""top-p: the most probable tokens up to a share."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampling.filters.top_p import top_p_mask
from sampling.host.params import SamplingParams
from tests.sampling import reference
from tests.sampling.agreement import ROUNDING, assert_draws, assert_follows
from tests.sampling.batches import random_logits
from tests.sampling.reference import Request

mask_of = jax.jit(top_p_mask)


def kept(weights: list[float], p: float) -> list[int]:
    return np.flatnonzero(mask_of(np.array([weights], np.float32), np.array([p], np.float32))[0]).tolist()


@pytest.mark.parametrize(
    ("p", "expected"),
    [(0.49, [2]), (0.5, [2]), (0.51, [0, 2]), (0.75, [0, 2]), (0.76, [0, 1, 2, 3]), (0.99, [0, 1, 2, 3]),
     (1e-9, [2]), (1e-50, [2]), (1.0, [0, 1, 2, 3, 4])],
)  # fmt: skip
def test_by_hand(p, expected):
    assert kept([4.0, 2.0, 8.0, 2.0, 0.0], p) == expected  # not normalised; equals stay together


def test_the_best_stays_whatever_rounding_does():
    assert kept([1.0], 1 - 2**-24) == [0]
    uniform = np.full(600, 0.1).tolist()
    assert kept(uniform, 1e-6) == list(range(600))
    assert kept([1.0, *[1e-9] * 600], 1 - 2**-24)[0] == 0


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.01, 0.5, 0.9, 0.999]), st.booleans())
def test_random_rows_are_cut_as_sorting_cuts_them(seed, p, has_ties):
    logits = random_logits(seed, 4, 100)
    weights = np.exp(np.round(logits, 1) if has_ties else logits)
    mask = np.asarray(mask_of(weights, np.full(4, p, np.float32)))
    for row in range(4):
        # float32 sums may decide otherwise where a share is that close to p.
        least, most = (reference.top_p(weights[row].astype(np.float64), p + way * ROUNDING) > 0 for way in (-1, 1))
        assert (least <= mask[row]).all()
        assert (mask[row] <= most).all()


def test_in_the_sampler(backend):
    requests = [
        Request(SamplingParams(top_p=[1e-50, 0.05, 0.5, 0.9, 0.999][index % 5], temperature=1 + index % 2 * 0.9))
        for index in range(60)
    ]
    tokens = assert_follows(backend, requests, logits := random_logits(3, 60, 600))
    assert tokens[0::5].tolist() == logits[0::5].argmax(axis=1).tolist()


def test_draws(backend):
    assert_draws(backend, Request(SamplingParams(top_p=0.7)))
