"""Log probabilities of what was sampled, of the best tokens and of listed ones."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from sampling.host.params import MAX_LOGPROB_TOKEN_IDS, MAX_LOGPROBS, SamplingParams
from sampling.logprobs import BEST, BEST_IDS, LISTED, MASKED, NUM_COLUMNS, OWN, RANK, TOKEN
from tests.sampling.agreement import assert_follows
from tests.sampling.batches import batch_of, random_logits, sample_batch, tokens_of
from tests.sampling.random_requests import random_requests
from tests.sampling.reference import Request, distribution, logprobs
from tests.thoroughness import some

TOLERANCE = 1e-4


def floats(columns: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(columns).view(np.float32)


def assert_columns(out: np.ndarray, logits: np.ndarray, token: int, listed: list[int]) -> None:
    """The columns of one row are those of the reference."""
    expected = logprobs(logits)
    assert floats(out[OWN]) == pytest.approx(expected[token], abs=TOLERANCE)
    assert out[RANK] == 1 + (logits > logits[token]).sum()
    num_best = min(MAX_LOGPROBS, len(logits))
    best = sorted(range(len(logits)), key=lambda token: (-logits[token], token))[:num_best]
    assert out[BEST_IDS : BEST_IDS + num_best].tolist() == best
    np.testing.assert_allclose(floats(out[BEST : BEST + num_best]), expected[best], atol=TOLERANCE)
    np.testing.assert_allclose(floats(out[LISTED : LISTED + len(listed)]), expected[listed], atol=TOLERANCE)


@pytest.mark.parametrize("vocab_size", some([7, 600], 1))  # 7 tokens are fewer than may be asked for
def test_of_sampled_tokens_from_the_logits_as_they_came(backend, vocab_size):
    """Whatever changes logits and cuts the distribution has no part in them."""
    random = np.random.default_rng(1)
    requests = []
    for index in range(60):
        listed = tuple(random.integers(0, vocab_size, [0, 1, MAX_LOGPROB_TOKEN_IDS][index % 3]).tolist())
        params = SamplingParams(
            logprobs=index % 21, logprob_token_ids=listed, temperature=[0.0, 0.3, 2.0][index % 3], top_p=0.9,
            repetition_penalty=1.5, logit_bias=((index % vocab_size, 5.0),), bad_words=((int(index % 5),),),
        )  # fmt: skip
        requests.append(Request(params, (1, 2), (3,)))
    logits = random_logits(2, 60, vocab_size)
    out, _ = sample_batch(backend, batch_of(requests, logits))
    assert out.shape == (64, NUM_COLUMNS)
    for row, request in enumerate(requests):
        assert_columns(out[row], logits[row], out[row, TOKEN], list(request.params.logprob_token_ids))


def test_they_sum_to_at_most_one(backend):
    requests = [Request(SamplingParams(logprobs=20))] * 60
    out, _ = sample_batch(backend, batch_of(requests, random_logits(3, 60, 600, spread=8.0)))
    best = np.exp(floats(out[:60, BEST : BEST + MAX_LOGPROBS]).astype(np.float64))
    own = np.exp(floats(out[:60, OWN]).astype(np.float64))
    is_among_best = (out[:60, BEST_IDS : BEST_IDS + MAX_LOGPROBS] == out[:60, :1]).any(axis=1)
    assert (best.sum(axis=1) + np.where(is_among_best, 0, own) <= 1 + TOLERANCE).all()
    assert (best[:, :-1] >= best[:, 1:]).all()


def test_of_equal_tokens_the_smaller_ids_come_first(backend):
    logits = np.zeros((1, 600), np.float32)
    logits[0, [500, 50]] = 1.0
    out, _ = sample_batch(backend, batch_of([Request(SamplingParams(temperature=0.0, logprobs=20))], logits))
    assert out[0, BEST_IDS : BEST_IDS + MAX_LOGPROBS].tolist() == [50, 500, *range(18)]
    assert (out[0, TOKEN], out[0, RANK]) == (50, 1)


def test_large_logits_and_impossible_tokens(backend):
    logits = np.full((2, 600), -np.inf, np.float32)
    logits[0, [3, 4]] = [1e4, 1e4 - 1]
    logits[1, [3, 4]] = [-1e4, -1e4 - 1]
    params = SamplingParams(temperature=0.0, logprobs=3, logprob_token_ids=(4, 5))
    out, _ = sample_batch(backend, batch_of([Request(params)] * 2, logits))
    for row in range(2):
        assert_columns(out[row], logits[row], 3, [4, 5])
        assert floats(out[row, LISTED + 1]) == -np.inf


def test_a_row_that_asks_for_them_gets_the_same_token_and_leaves_its_neighbours_alone(backend):
    logits = random_logits(4, 60, 600)
    plain = [Request(SamplingParams(temperature=index % 2 * 1.0)) for index in range(60)]
    asking = [
        Request(SamplingParams(temperature=index % 2 * 1.0, logprobs=5 if index % 3 else None)) for index in range(60)
    ]
    assert np.array_equal(assert_follows(backend, plain, logits), assert_follows(backend, asking, logits))
    assert np.array_equal(tokens_of(backend, batch_of(plain, logits)), tokens_of(backend, batch_of(asking, logits)))


@pytest.mark.parametrize("vocab_size", some([600, 7], 1))
def test_what_a_grammar_took_away_is_told_exactly(backend, vocab_size):
    """By the logits as they came: a ban beside the grammar takes nothing more, and other rows lose nothing."""
    random = np.random.default_rng(7)
    logits = random_logits(8, 40, vocab_size, spread=6.0)
    allowed = [random.choice(vocab_size, 1 + index % vocab_size, replace=False).tolist() for index in range(40)]
    logits[1, allowed[1]] = 30.0  # what is taken away is next to nothing
    requests = [
        Request(
            SamplingParams(logprobs=2, temperature=index % 2 * 1.0, logit_bias=((index % vocab_size, 1.0),)),
            grammar=frozenset(allowed[index]) if index % 4 else None,
        )
        for index in range(40)
    ]
    out, _ = sample_batch(backend, batch_of(requests, logits))
    for row, request in enumerate(requests):
        probabilities = np.exp(logprobs(logits[row]))
        taken = 0.0 if request.grammar is None else np.delete(probabilities, sorted(request.grammar)).sum()
        assert floats(out[row, MASKED]) == pytest.approx(taken, rel=1e-4, abs=1e-30)


@pytest.mark.parametrize("vocab_size", some([7, 600], 1))
def test_of_the_distribution_that_tokens_were_drawn_from(backend, vocab_size):
    """Behind everything that changes logits and cuts the distribution; other rows tell of the logits as they came."""
    random = np.random.default_rng(9)
    requests = []
    for index, request in enumerate(random_requests(9, 60, vocab_size)):
        params = replace(
            request.params, logprobs=20, xtc_probability=0.0, drawn_logprobs=index % 3 > 0,
            logprob_token_ids=tuple(random.integers(0, vocab_size, 3).tolist()),
        )  # fmt: skip
        requests.append(replace(request, params=params))
    logits = random_logits(10, 60, vocab_size)
    out, _ = sample_batch(backend, batch_of(requests, logits))
    num_drawn = 0
    for row, request in enumerate(requests):
        token, listed = out[row, TOKEN], list(request.params.logprob_token_ids)
        if token >= vocab_size:
            continue
        if not request.params.drawn_logprobs:
            assert_columns(out[row], logits[row], token, listed)
            continue
        num_drawn += 1
        if request.params.temperature == 0.0:
            expected = np.eye(vocab_size)[token]
        else:
            expected = distribution(logits[row], request).without_xtc
        best, ids = np.exp(floats(out[row, BEST : BEST + MAX_LOGPROBS])), out[row, BEST_IDS : BEST_IDS + MAX_LOGPROBS]
        num_best = min(MAX_LOGPROBS, vocab_size)
        np.testing.assert_allclose(best[:num_best], np.sort(expected)[::-1][:num_best], atol=1e-3)
        np.testing.assert_allclose(best[:num_best], expected[ids[:num_best]], atol=1e-3)
        assert np.exp(floats(out[row, OWN])) == pytest.approx(expected[token], abs=1e-3)
        assert expected[token] > 0
        np.testing.assert_allclose(np.exp(floats(out[row, LISTED : LISTED + 3])), expected[listed], atol=1e-3)
        assert floats(out[row, MASKED]) == 0
    assert num_drawn > 20


def test_a_number_that_is_none_shows_in_the_drawn_ones_too(backend):
    logits = np.zeros((1, 600), np.float32)
    logits[0, 5] = np.nan
    request = Request(SamplingParams(logprobs=1, drawn_logprobs=True))
    out, _ = sample_batch(backend, batch_of([request], logits))
    assert out[0, TOKEN] == 600
    assert np.isnan(floats(out[0, OWN]))


@pytest.mark.parametrize("vocab_size", [7, 600, 49153])
def test_of_given_tokens_as_of_a_prompt(backend, vocab_size):
    random = np.random.default_rng(5)
    logits = random_logits(6, 9, vocab_size)
    logits[1, ::3] = -np.inf
    tokens = random.integers(0, vocab_size, 9).astype(np.int32)
    listed = random.integers(0, vocab_size, (9, MAX_LOGPROB_TOKEN_IDS)).astype(np.int32)
    out = np.asarray(jax.jit(backend.logprobs)(logits, tokens, listed))
    assert np.array_equal(out[:, TOKEN], tokens)
    for row in range(9):
        assert_columns(out[row], logits[row], tokens[row], listed[row].tolist())


def test_columns_do_not_overlap():
    assert (TOKEN, OWN, RANK, MASKED, BEST_IDS) == (0, 1, 2, 3, 4)
    assert (BEST, LISTED, NUM_COLUMNS) == (24, 44, 108)
