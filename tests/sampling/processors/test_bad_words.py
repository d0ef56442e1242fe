"""bad_words: sequences that the output shall not have."""

import numpy as np
import pytest

from sampling.host.params import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS, SamplingParams
from sampling.processors.bad_words import BAD_WORDS
from tests.sampling.agreement import assert_feature_alone, assert_follows
from tests.sampling.batches import admission_of, apply_alone, batch_of, random_logits, shape_of
from tests.sampling.reference import Request

LONG = tuple(range(10, 10 + MAX_BAD_WORD_TOKENS))


def banned(words, output=(), prompt=(0,)) -> list[int]:
    request = Request(SamplingParams(bad_words=tuple(words)), tuple(prompt), tuple(output))
    return np.flatnonzero(apply_alone("bad_words", batch_of([request], np.zeros((1, 100), np.float32)))[0]).tolist()


@pytest.mark.parametrize(
    ("words", "output", "expected"),
    [
        ([(5,)], (), [5]),  # a single token, always
        ([(5,), (6,), (5,)], (1, 2), [5, 6]),
        ([(1, 2)], (), []),
        ([(1, 2)], (1,), [2]),
        ([(1, 2)], (1, 3), []),  # 1 is not the last
        ([(1, 2, 3)], (2,), []),  # the output is shorter than what comes before
        ([(1, 2, 3)], (1, 2), [3]),
        ([(1, 2, 3)], (9, 9, 1, 2), [3]),
        ([(1, 1, 1)], (1, 1, 1), [1]),
        ([(1, 2), (1, 2, 3)], (1, 2), [3]),  # one is the beginning of another
        ([(1, 2), (1, 2, 3), (2, 4)], (1, 2), [3, 4]),
        ([LONG], LONG[:-1], [LONG[-1]]),
        ([LONG], (7, *LONG[:-1]), [LONG[-1]]),
        ([LONG], LONG[1:-1], []),  # one token short
        ([LONG], (*LONG[:3], 99, *LONG[4:-1]), []),
        ([(0, 0)], (0,), [0]),  # token 0 is a token like any other
        ([(99,)], (), [99]),
    ],
)
def test_by_hand(words, output, expected):
    assert banned(words, output) == expected


def test_the_prompt_does_not_count():
    assert banned([(1, 2)], output=(), prompt=(1,)) == []
    assert banned([(1, 2, 3)], output=(2,), prompt=(5, 1)) == []
    assert banned([(1, 2, 3)], output=(1, 2), prompt=(5, 1)) == [3]
    assert banned([LONG], output=LONG[5:-1], prompt=LONG[:5]) == []


def test_as_many_words_as_there_may_be():
    words = [(1, 2, token % 100) for token in range(MAX_BAD_WORDS)]
    assert banned(words, output=(1, 2)) == list(range(100))
    assert banned(words, output=(1, 3)) == []


def test_a_row_of_the_state_ends_every_word_in_the_last_column():
    request = Request(SamplingParams(bad_words=((5,), (1, 2))))
    row = np.asarray(BAD_WORDS.row(admission_of(request), shape_of(100)))
    assert row.shape == (MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS)
    assert row[0].tolist() == [-1] * 15 + [5]
    assert row[1].tolist() == [-1] * 14 + [1, 2]
    assert (row[2:] == -1).all()


def random_requests(vocab_size: int, count: int, **params) -> list[Request]:
    """Words of few different tokens, so that many are due."""
    random = np.random.default_rng(1)

    def sequence(most: int) -> tuple[int, ...]:
        return tuple(random.integers(0, 3, random.integers(0, most)).tolist())

    requests = []
    for _ in range(count):
        words = tuple((*sequence(4), int(random.integers(0, vocab_size))) for _ in range(10))
        requests.append(Request(SamplingParams(bad_words=words, **params), sequence(5), sequence(20)))
    return requests


@pytest.mark.parametrize("vocab_size", [7, 100, 600])
def test_random_words_are_as_defined(vocab_size):
    requests = random_requests(vocab_size, 20)
    assert_feature_alone("bad_words", requests, random_logits(2, 20, vocab_size))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_in_the_sampler(backend, temperature):
    requests = random_requests(7, 60, temperature=temperature)
    assert_follows(backend, requests, random_logits(3, 60, 7, spread=1.0))
