"""A row's token depends on its own logits, parameters, seed and position, and on nothing around it."""

import numpy as np
import pytest

from sampling.host.params import SamplingParams
from sampling.host.rows import POSITION, SamplerVariant, level_of
from sampling.logprobs import BEST, MASKED, NUM_COLUMNS, OWN, TOKEN
from sampling.sampler import PORTABLE
from tests.sampling.batches import NUM_ROWS, batch_of, random_logits, sample_batch, tokens_of
from tests.sampling.random_requests import random_requests
from tests.sampling.reference import Request

VOCAB_SIZE = 600


@pytest.fixture(scope="module")
def crowd():
    """Requests with logits, and seeds of 64 bits."""
    seeds = [int(seed) for seed in np.random.default_rng(1).integers(-(2**63), 2**63 - 1, NUM_ROWS)]
    return random_requests(20, NUM_ROWS, VOCAB_SIZE), random_logits(20, NUM_ROWS, VOCAB_SIZE), seeds


def outputs(backend, crowd, wanted, *, num_rows, slots=None) -> np.ndarray:
    """The output columns of some of the crowd, in a batch of their own; what nobody asked for is 0."""
    requests, logits, seeds = crowd
    batch = batch_of(
        [requests[row] for row in wanted], logits[wanted], seeds=[seeds[row] for row in wanted], slots=slots,
        num_rows=num_rows,
    )  # fmt: skip
    out = sample_batch(backend, batch)[0][: len(wanted)].copy()
    has_asked = np.array([requests[row].params.logprobs is not None for row in wanted])
    out[~has_asked, TOKEN + 1 :] = 0
    return out


def assert_same(backend, out: np.ndarray, expected: np.ndarray) -> None:
    """The columns of rows in batches of different sizes.

    XLA adds up a row's numbers in an order that depends on the number of rows, so that its logprobs may differ in the
    last bits; everything else, and of other backends all of it, is the same bit for bit.
    """
    if backend is PORTABLE:
        of_logprobs = np.r_[OWN, MASKED, BEST:NUM_COLUMNS]
        bits = (np.ascontiguousarray(columns[..., of_logprobs]) for columns in (out, expected))
        np.testing.assert_allclose(*(columns.view(np.float32) for columns in bits), rtol=0, atol=1e-5)
        out, expected = np.delete(out, of_logprobs, axis=-1), np.delete(expected, of_logprobs, axis=-1)
    assert np.array_equal(out, expected)


@pytest.fixture(scope="module")
def together(backend, crowd):
    out = outputs(backend, crowd, np.arange(NUM_ROWS), num_rows=NUM_ROWS)
    assert out.shape == (NUM_ROWS, NUM_COLUMNS)
    assert len(set(out[:, TOKEN].tolist())) > 20
    return out


def test_alone(backend, crowd, together):
    alone = [outputs(backend, crowd, [row], num_rows=1)[0] for row in range(NUM_ROWS)]
    assert_same(backend, np.array(alone), together)


def test_in_small_batches(backend, crowd, together):
    for start in range(0, NUM_ROWS - 4, 5):
        wanted = np.arange(start, start + 5)
        assert_same(backend, outputs(backend, crowd, wanted, num_rows=5), together[wanted])


def test_with_padding_after_it(backend, crowd, together):
    for row in range(0, NUM_ROWS, 5):
        assert_same(backend, outputs(backend, crowd, [row], num_rows=5)[0], together[row])
        assert np.array_equal(outputs(backend, crowd, [row], num_rows=NUM_ROWS)[0], together[row])


@pytest.mark.parametrize("seed", range(3))
def test_among_other_neighbours_in_other_places_and_slots(backend, crowd, together, seed):
    random = np.random.default_rng(seed)
    wanted, slots = random.permutation(NUM_ROWS), random.permutation(NUM_ROWS).tolist()
    assert np.array_equal(outputs(backend, crowd, wanted, num_rows=NUM_ROWS, slots=slots), together[wanted])
    few = wanted[:20]
    assert np.array_equal(outputs(backend, crowd, few, num_rows=NUM_ROWS, slots=slots[:20]), together[few])


def test_a_row_without_features_gets_its_token_from_any_program(backend):
    """Its neighbours decide which program runs."""
    random = np.random.default_rng(2)
    cuts = [{}, dict(top_k=20), dict(top_p=0.8), dict(typical_p=0.7), dict(min_p=0.05), dict(top_n_sigma=1.5),
            dict(xtc_probability=0.5), dict(top_k=50, top_p=0.9, xtc_probability=0.9)]  # fmt: skip
    plain = [
        Request(SamplingParams(temperature=[0.0, 0.7, 1.5][index % 3], **cuts[index % len(cuts)]), output=(1,) * index)
        for index in range(48)
    ]
    busy = random_requests(21, 16, VOCAB_SIZE)
    logits = random_logits(22, NUM_ROWS, VOCAB_SIZE)
    seeds = random.integers(0, 2**62, NUM_ROWS).tolist()
    is_greedy = np.array([request.params.temperature == 0.0 for request in plain])
    assert max(level_of(request.params) for request in plain) is SamplerVariant.RANDOM

    among_busy = tokens_of(backend, batch_of(plain + busy, logits, seeds=seeds))[:48]
    batch = batch_of(plain, logits[:48], seeds=seeds[:48])
    assert np.array_equal(tokens_of(backend, batch, SamplerVariant.FULL)[:48], among_busy)
    assert np.array_equal(tokens_of(backend, batch, SamplerVariant.RANDOM)[:48], among_busy)
    assert np.array_equal(tokens_of(backend, batch, SamplerVariant.GREEDY)[:48][is_greedy], among_busy[is_greedy])


@pytest.mark.parametrize("level", [SamplerVariant.RANDOM, SamplerVariant.FULL])
def test_seed_and_position_decide_and_nothing_else(backend, level):
    request = Request(SamplingParams())
    logits = np.zeros((NUM_ROWS, VOCAB_SIZE), np.float32)

    def draws(*, seed, positions):
        batch = batch_of([request] * NUM_ROWS, logits, seeds=[seed] * NUM_ROWS)
        batch.rows.ints[:, POSITION] = positions
        return tokens_of(backend, batch, level)

    once = draws(seed=7, positions=np.arange(NUM_ROWS))
    assert np.array_equal(once, draws(seed=7, positions=np.arange(NUM_ROWS)))
    assert np.array_equal(once[::-1], draws(seed=7, positions=np.arange(NUM_ROWS)[::-1]))
    assert (draws(seed=7, positions=5) == once[5]).all()
    assert np.mean(once == draws(seed=8, positions=np.arange(NUM_ROWS))) < 0.1
    assert np.mean(once == draws(seed=7 + 2**32, positions=np.arange(NUM_ROWS))) < 0.1
    assert len(set(once.tolist())) > 50
