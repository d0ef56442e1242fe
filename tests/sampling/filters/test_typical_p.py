"""Locally typical sampling."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampling.filters.typical_p import typical_p_mask
from sampling.host.params import SamplingParams
from tests.sampling import reference
from tests.sampling.agreement import ROUNDING, assert_draws, assert_follows
from tests.sampling.batches import random_logits
from tests.sampling.reference import Request

mask_of = jax.jit(typical_p_mask)

SLACK = 1e-4  # nats, of distances of surprises up to a hundred in float32


def kept(weights: list[float], p: float) -> list[int]:
    mask = np.asarray(mask_of(np.array([weights], np.float32), np.array([p], np.float32)))[0]
    return [token for token in np.flatnonzero(mask).tolist() if weights[token] > 0]


@pytest.mark.parametrize(
    ("p", "expected"),
    # The entropy of these is 1.75 bits, their surprises are 1, 2, 3 and 3: 2 is the closest, then 1, then 3.
    [(0.1, [1]), (0.25, [1]), (0.26, [0, 1]), (0.75, [0, 1]), (0.76, [0, 1, 2, 3]), (1e-50, [1]), (1.0, [0, 1, 2, 3])],
)
def test_by_hand(p, expected):
    assert kept([8.0, 4.0, 2.0, 2.0, 0.0], p) == expected


def test_uniform_and_certain_rows_stay_whole():
    assert kept([0.3] * 600, 0.2) == list(range(600))
    assert kept([0.0, 5.0, 0.0], 0.01) == [1]


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.01, 0.2, 0.5, 0.95]), st.floats(0.1, 30))
def test_random_rows_are_cut_as_sorting_cuts_them(seed, p, spread):
    logits = random_logits(seed, 4, 100, spread)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    mask = np.asarray(mask_of(weights, np.full(4, p, np.float32)))
    for row in range(4):
        exact = weights[row].astype(np.float64)
        distance = reference.typical_distance(exact)
        # float32 may decide otherwise where a share is that close to p, or two distances to each other.
        least, most = (distance[reference.typical_p(exact, p + way * ROUNDING) > 0].max() for way in (-1, 1))
        is_real = exact > ROUNDING * exact.sum()  # others have no part in sums, nor in what is drawn
        assert mask[row][is_real & (distance < least - SLACK)].all()
        assert not mask[row][is_real & (distance > most + SLACK)].any()
        assert exact[mask[row]].sum() >= (p - ROUNDING) * exact.sum()


@pytest.mark.parametrize("lowest", [-80.0, -87.0, -87.2, -87.5, -95.0, -103.0, -104.0])
def test_weights_at_the_end_of_what_floats_hold_do_no_harm(backend, lowest):
    """Of a weight that is not 0 the probability may be, and has no logarithm."""
    logits = np.full((60, 600), lowest, np.float32)
    logits[:, :3] = [0.0, -0.5, -1.0]
    assert set(assert_follows(backend, [Request(SamplingParams(typical_p=0.1))] * 60, logits).tolist()) == {1}


def test_in_the_sampler(backend):
    requests = [
        Request(SamplingParams(typical_p=[1e-50, 0.05, 0.3, 0.6, 0.95][index % 5], temperature=1 + index % 2 * 0.9))
        for index in range(60)
    ]
    assert_follows(backend, requests, random_logits(3, 60, 600))


def test_draws(backend):
    assert_draws(backend, Request(SamplingParams(typical_p=0.6)))
