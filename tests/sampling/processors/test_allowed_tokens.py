"""allowed_token_ids: nothing else."""

import numpy as np
import pytest

from sampling.host.params import SamplingParams
from tests.sampling.agreement import assert_draws, assert_feature_alone, assert_follows
from tests.sampling.batches import random_logits
from tests.sampling.reference import Request


def allowing(*token_ids: int, **params) -> Request:
    return Request(SamplingParams(allowed_token_ids=token_ids, **params))


@pytest.mark.parametrize("vocab_size", [7, 100, 600])
def test_alone_it_is_as_defined(vocab_size):
    requests = [allowing(0), allowing(vocab_size - 1), allowing(3, 3, 1), allowing(*range(vocab_size)),
                allowing(*range(0, vocab_size, 3))]  # fmt: skip
    logits = random_logits(1, len(requests), vocab_size)
    logits[:, 3] = -np.inf
    assert_feature_alone("allowed_tokens", requests, logits)


def test_a_single_token_is_certain_whatever_it_weighs(backend):
    logits = random_logits(2, 3, 600, spread=50.0)
    logits[2, 31] = -1e38
    requests = [allowing(31, temperature=temperature) for temperature in (0.0, 0.7, 1e-30)]
    assert assert_follows(backend, requests, logits).tolist() == [31, 31, 31]


def test_in_the_sampler(backend):
    random = np.random.default_rng(3)
    requests = [
        allowing(*random.integers(0, 600, 1 + index % 5).tolist(), temperature=index % 2 * 2.0) for index in range(60)
    ]
    assert_follows(backend, requests, random_logits(4, 60, 600))


def test_draws(backend):
    assert_draws(backend, allowing(1, 2, 30, 31, 32, 63, 64, 99, temperature=1.5))


def test_none_of_those_allowed_is_possible(backend):
    logits = random_logits(5, 2, 600)
    logits[:, 5] = -np.inf
    requests = [allowing(5), allowing(5, temperature=0.0)]
    assert assert_follows(backend, requests, logits).tolist() == [601, 601]
