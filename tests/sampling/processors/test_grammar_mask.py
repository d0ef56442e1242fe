"""What a grammar allows next."""

import jax
import numpy as np
import pytest

from sampling.host.params import SamplingParams
from sampling.processors.grammar_mask import apply_mask
from sampling.processors.logits_processor import pack
from tests.sampling.agreement import assert_draws, assert_follows
from tests.sampling.batches import random_logits, shape_of
from tests.sampling.reference import Request, processed

apply = jax.jit(apply_mask)


@pytest.mark.parametrize("vocab_size", [7, 100, 600])
def test_alone_it_is_as_defined(vocab_size):
    allowed = [{0}, {vocab_size - 1}, set(range(vocab_size)), set(range(1, vocab_size, 2)), set()]
    logits = random_logits(1, 5, vocab_size)
    mask = np.stack([pack(np.array(sorted(tokens), np.int64), shape_of(vocab_size)) for tokens in allowed])
    changed = np.asarray(apply(logits, mask, np.array([True, True, True, True, False])))
    for row, tokens in enumerate(allowed[:4]):
        expected = processed(logits[row], Request(SamplingParams(), grammar=frozenset(tokens)))
        assert np.array_equal(changed[row], expected.astype(np.float32))
    assert changed[4].tobytes() == logits[4].tobytes()  # it has no grammar: its mask is anything


def test_in_the_sampler(backend):
    random = np.random.default_rng(2)
    requests = [
        Request(
            SamplingParams(temperature=index % 2 * 1.0),
            grammar=frozenset(random.integers(0, 600, 1 + index % 9).tolist()) if index % 3 else None,
        )
        for index in range(60)
    ]
    assert_follows(backend, requests, random_logits(3, 60, 600))


def test_draws(backend):
    assert_draws(backend, Request(SamplingParams(), grammar=frozenset({1, 31, 32, 99})))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_and_a_ban_that_leave_nothing(backend, temperature):
    params = SamplingParams(temperature=temperature, bad_words=((4,),))
    request = Request(params, grammar=frozenset({4}))
    assert assert_follows(backend, [request], random_logits(4, 1, 600)).tolist() == [601]
