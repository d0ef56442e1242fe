"""logit_bias: something added to a few logits."""

import numpy as np
import pytest

from sampling.host.params import MAX_LOGIT_BIAS, SamplingParams
from tests.sampling.agreement import assert_draws, assert_feature_alone, assert_follows
from tests.sampling.batches import apply_alone, batch_of, random_logits
from tests.sampling.reference import Request


def biased(*biases: tuple[int, float], **params) -> Request:
    return Request(SamplingParams(logit_bias=biases, **params))


@pytest.mark.parametrize("vocab_size", [7, 100, 600])
def test_alone_it_is_as_defined(vocab_size):
    requests = [
        biased((0, 1.5)),
        biased((0, -100.0), (vocab_size - 1, 100.0), (3, 0.25)),
        biased((2, 0.0)),
        biased(*((token, token % 5 - 2.0) for token in range(vocab_size))),
    ]
    assert_feature_alone("logit_bias", requests, random_logits(1, len(requests), vocab_size))


def test_as_many_as_there_may_be():
    vocab_size = 2000
    request = biased(*((token, 1.0) for token in range(0, 2 * MAX_LOGIT_BIAS, 2) if token < vocab_size))
    after = apply_alone("logit_bias", batch_of([request], np.zeros((1, vocab_size), np.float32), num_rows=1))[0]
    assert after.tolist() == [1.0, 0.0] * 1000


def test_what_is_impossible_stays_so():
    logits = np.full((1, 7), -np.inf, np.float32)
    after = apply_alone("logit_bias", batch_of([biased((3, 100.0))], logits, num_rows=8))[0]
    assert (after == -np.inf).all()


def test_in_the_sampler(backend):
    biases = [((4, 100.0),), ((4, -100.0), (5, 2.0)), ((0, 3.0),)]
    requests = [biased(*biases[index % 3], temperature=index % 2 * 1.0) for index in range(60)]
    tokens = assert_follows(backend, requests, random_logits(2, 60, 7, spread=1.0))
    assert set(tokens[0::3].tolist()) == {4}
    assert 4 not in tokens[1::3]


def test_draws(backend):
    assert_draws(backend, biased((4, 2.0), (5, -2.0), (6, 1.0)))
