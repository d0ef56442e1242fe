"""min_tokens: the request goes on until then."""

import numpy as np
import pytest

from sampling.host.params import SamplingParams
from sampling.processors.min_tokens import MAX_END_IDS
from tests.sampling.agreement import assert_feature_alone, assert_follows
from tests.sampling.batches import apply_alone, batch_of, random_logits
from tests.sampling.reference import Request


def at_least(count: int, output_length: int, stop_ids: set[int], prompt_length: int = 3, **params) -> Request:
    return Request(
        SamplingParams(min_tokens=count, max_tokens=100, **params),
        (1,) * prompt_length, (1,) * output_length, frozenset(stop_ids),
    )  # fmt: skip


@pytest.mark.parametrize("vocab_size", [7, 100, 600])
def test_alone_it_is_as_defined(vocab_size):
    requests = [at_least(3, length, {0, 4, vocab_size - 1}) for length in range(5)]
    requests += [at_least(1, 0, set()), at_least(1, 0, set(range(7)))]
    assert_feature_alone("min_tokens", requests, random_logits(1, len(requests), vocab_size))


@pytest.mark.parametrize("prompt_length", [1, 90])
def test_the_prompt_is_no_output(prompt_length):
    requests = [at_least(5, length, {2}, prompt_length) for length in (0, 4, 5, 6)]
    after = apply_alone("min_tokens", batch_of(requests, np.zeros((4, 7), np.float32), num_rows=8))
    assert [np.flatnonzero(row).tolist() for row in after[:4]] == [[2], [2], [], []]


def test_as_many_end_tokens_as_fit():
    request = at_least(1, 0, set(range(MAX_END_IDS)))
    after = apply_alone("min_tokens", batch_of([request], np.zeros((1, 600), np.float32), num_rows=8))[0]
    assert np.flatnonzero(after).tolist() == list(range(MAX_END_IDS))


def test_in_the_sampler(backend):
    requests = [at_least(3, index % 6, {0, 1, 2}, temperature=index % 2 * 1.0) for index in range(60)]
    tokens = assert_follows(backend, requests, random_logits(2, 60, 7))
    is_short = np.arange(60) % 6 < 3
    assert tokens[is_short].min() > 2
    assert tokens[~is_short].min() <= 2


def test_where_every_token_ends_the_request_none_is_left(backend):
    assert assert_follows(backend, [at_least(1, 0, set(range(7)))], random_logits(3, 1, 7)).tolist() == [8]
