"""The whole sampler against the reference, in batches in which every row asks for something else."""

import numpy as np
import pytest

from sampling.host.params import SamplingParams
from sampling.host.rows import NOT_SAMPLED, POSITION, SLOT, SamplerVariant
from sampling.logprobs import TOKEN
from sampling.state import Slots
from tests.sampling.agreement import assert_follows, assert_frequencies, draws_of
from tests.sampling.batches import NUM_SLOTS, batch_of, random_logits, sample_batch, tokens_of
from tests.sampling.random_requests import random_requests
from tests.sampling.reference import Request, best_token, distribution
from tests.thoroughness import IS_FULL, some

LEVELS = {
    SamplerVariant.GREEDY: 0.0,
    SamplerVariant.RANDOM: 1.0,
    SamplerVariant.FULL: 1.0,
}  # and a temperature for each


@pytest.mark.parametrize("vocab_size", some([600, 7], 1))
@pytest.mark.parametrize("seed", range(6))
def test_every_token_is_the_references(backend, vocab_size, seed):
    requests = random_requests(seed, 60, vocab_size)
    assert_follows(backend, requests, random_logits(seed, 60, vocab_size), seeds=range(100 * seed, 100 * seed + 60))


@pytest.mark.parametrize("seed", range(6, 9))
def test_every_greedy_token_is_the_references(backend, seed):
    requests = random_requests(seed, 60, 600, temperature=0.0)
    logits = random_logits(seed, 60, 600)
    tokens = assert_follows(backend, requests, logits)
    assert tokens.tolist() == [best_token(*pair) for pair in zip(logits, requests, strict=True)]


def test_tokens_are_as_frequent_as_they_are_probable(backend):
    """Here the random numbers are nobody's business but the sampler's."""
    requests = random_requests(10, 48, 600, temperature=1.2)
    logits = random_logits(10, 48, 600, spread=2.0)
    requests = [pair[0] for pair in zip(requests, logits, strict=True) if best_token(pair[1], pair[0]) < 600][:32]
    logits = logits[:32]
    tokens = draws_of(backend, requests, logits, num_draws=600 if IS_FULL else 200)
    for row, request in enumerate(requests):
        assert_frequencies(tokens[row], distribution(logits[row], request).total, request)


@pytest.mark.parametrize("level", [SamplerVariant.RANDOM, SamplerVariant.FULL])
@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1e-40, 1e-50])
def test_at_next_to_no_temperature_the_best_token_is_certain(backend, temperature, level):
    logits = random_logits(1, 60, 600)
    batch = batch_of([Request(SamplingParams(temperature=temperature))] * 60, logits)
    assert tokens_of(backend, batch, level)[:60].tolist() == logits.argmax(axis=1).tolist()


@pytest.mark.parametrize("level", [SamplerVariant.GREEDY, SamplerVariant.FULL])
def test_of_equals_greedy_takes_the_first(backend, level):
    logits = random_logits(2, 4, 600)
    logits[0, [300, 20, 599]] = 50.0
    logits[1] = 0.0
    logits[2] = -np.inf
    logits[2, [7, 8]] = -3.0
    logits[3, [100, 99]] = [0.0, -0.0]
    logits[3, logits[3] > 0] = -1.0
    batch = batch_of([Request(SamplingParams(temperature=0.0))] * 4, logits)
    assert tokens_of(backend, batch, level)[:4].tolist() == [20, 0, 7, 99]


@pytest.mark.parametrize("level", LEVELS)
def test_padding_samples_nothing_and_touches_no_slot(backend, level):
    requests = [Request(SamplingParams(temperature=LEVELS[level]))] * 3
    batch = batch_of(requests, random_logits(3, 3, 600), slots=[9, 2, 40])
    batch.rows.ints[1] = batch.rows.ints[-1]
    batch.logits[[1, 5]] = np.nan  # whatever lies in a padding row
    tokens = tokens_of(backend, batch, level)
    assert ((tokens == NOT_SAMPLED) == (batch.rows.ints[:, SLOT] == NUM_SLOTS)).all()
    assert (tokens[[0, 2]] >= 0).all()


def test_what_padding_samples_is_written_nowhere(backend):
    remembering = SamplingParams(frequency_penalty=1.0, dry_multiplier=1.0)
    batch = batch_of([Request(remembering)] * 2, random_logits(3, 2, 600), slots=[9, 40])
    slots = Slots(np.full(NUM_SLOTS, -5, np.int32))
    out, after = sample_batch(backend, batch._replace(slots=slots))
    tokens, position = out[:2, TOKEN], batch.rows.ints[0, POSITION]
    expected = np.full(NUM_SLOTS, -5, np.int32)
    expected[[9, 40]] = tokens
    assert np.array_equal(after.slots.last_token, expected)
    history, counts = batch.states["history"].copy(), batch.states["penalties"].counts.copy()
    history[[9, 40], position] = tokens
    counts[[9, 40], tokens] += 1
    assert np.array_equal(after.states["history"], history)
    assert np.array_equal(after.states["penalties"].counts, counts)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("place", [0, 255, 599])
def test_a_nan_is_reported_and_stays_in_its_row(backend, level, place):
    requests = [Request(SamplingParams(temperature=LEVELS[level]))] * 3
    logits = random_logits(4, 3, 600)
    clean = tokens_of(backend, batch_of(requests, logits), level)
    logits[1, place] = np.nan
    tokens = tokens_of(backend, batch_of(requests, logits), level)
    assert tokens[:3].tolist() == [clean[0], 600, clean[2]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_nan_is_reported_where_its_token_is_banned_too(backend, temperature):
    params = SamplingParams(temperature=temperature, bad_words=((5,),), top_k=3)
    logits = random_logits(5, 2, 600)
    logits[0, 5] = np.nan
    logits[1] = np.nan
    assert assert_follows(backend, [Request(params)] * 2, logits).tolist() == [600, 600]


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_nothing_left_is_reported_whatever_took_it(backend, temperature):
    def banned(**params) -> SamplingParams:
        return SamplingParams(temperature=temperature, min_tokens=1, top_p=0.5, typical_p=0.5, **params)

    requests = [
        Request(banned(bad_words=tuple((token,) for token in range(7)))),
        Request(banned(allowed_token_ids=(3,), bad_words=((3,),))),
        Request(banned(), stop_ids=frozenset(range(7))),
        Request(banned(allowed_token_ids=(3, 4)), grammar=frozenset({1, 2})),
        Request(banned(allowed_token_ids=(3, 4)), stop_ids=frozenset({3}), grammar=frozenset({3})),
        Request(banned(logit_bias=((1, 100.0),))),
    ]
    logits = random_logits(6, 6, 7)
    logits[5] = -np.inf
    assert assert_follows(backend, requests, logits).tolist() == [8] * 6


@pytest.mark.parametrize("level", [SamplerVariant.RANDOM, SamplerVariant.FULL])
def test_an_infinite_logit_wins(backend, level):
    logits = random_logits(7, 2, 600)
    logits[:, 77] = np.inf
    cuts = SamplingParams(top_p=0.5, typical_p=0.5, top_k=3, top_n_sigma=1.0, min_p=0.1)
    requests = [Request(cuts), Request(SamplingParams())]
    assert tokens_of(backend, batch_of(requests, logits), level)[:2].tolist() == [77, 77]


@pytest.mark.parametrize("temperature", [1e-30, 1e-38, 2.0])
def test_extreme_logits(backend, temperature):
    """Also where the difference between two of them is beyond all floats."""
    logits = random_logits(7, 4, 600, spread=1.0)
    logits[1, 0], logits[1, 599] = -3e38, 3e38
    logits[2] = -np.inf
    logits[2, 77] = -3e38
    batch = batch_of([Request(SamplingParams(temperature=temperature))] * 4, logits)
    for level in (SamplerVariant.RANDOM, SamplerVariant.FULL):
        tokens = tokens_of(backend, batch, level)
        assert tokens[1:3].tolist() == [599, 77]
        assert temperature == 2.0 or tokens[0] == logits[0].argmax()


def test_equal_infinities_are_drawn_alike(backend):
    logits = np.zeros((64, 600), np.float32)
    logits[:, [3, 570]] = np.inf
    batch = batch_of([Request(SamplingParams())] * 64, logits)
    assert set(tokens_of(backend, batch, SamplerVariant.RANDOM).tolist()) == {3, 570}
    batch.logits[:] = -np.inf
    assert len(set(tokens_of(backend, batch, SamplerVariant.RANDOM).tolist())) > 30


def test_every_cut_at_once_leaves_the_best(backend):
    params = SamplingParams(
        top_n_sigma=1e-6, min_p=1.0, top_k=1, typical_p=1e-9, top_p=1e-9, xtc_probability=1.0, xtc_threshold=0.0
    )
    logits = random_logits(8, 60, 600)
    assert assert_follows(backend, [Request(params)] * 60, logits).tolist() == logits.argmax(axis=1).tolist()


@pytest.mark.parametrize("vocab_size", some([600, 7], 1))
def test_a_long_output_step_by_step_as_from_scratch(backend, vocab_size):
    """What the device keeps after each step is what a request, staged anew, would find there."""
    requests = random_requests(11, 60, vocab_size)
    requests = [Request(r.params, r.prompt, r.output[:3], r.stop_ids) for r in requests]  # no grammar: it would move on
    batch = batch_of(requests, np.zeros((60, vocab_size), np.float32))
    is_running = np.ones(60, bool)
    for step in range(8):
        batch.logits[:60] = logits = random_logits(100 + step, 60, vocab_size)
        batch.rows.ints[:60, POSITION] = [len(request.token_ids) for request in requests]
        batch.rows.ints[:60, SLOT] = np.where(is_running, np.arange(60), NUM_SLOTS)
        out, batch = sample_batch(backend, batch)
        tokens = out[:60, TOKEN]
        assert np.array_equal(tokens[is_running], assert_follows(backend, requests, logits)[is_running])
        assert np.array_equal(np.asarray(batch.slots.last_token)[:60][is_running], tokens[is_running])
        is_running &= tokens < vocab_size  # the others have no token left
        for row in np.flatnonzero(is_running).tolist():
            old = requests[row]
            requests[row] = Request(old.params, old.prompt, (*old.output, int(tokens[row])), old.stop_ids)
    assert is_running.sum() > 30
