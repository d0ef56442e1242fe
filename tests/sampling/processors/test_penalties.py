"""Presence, frequency and repetition penalties."""

import jax
import numpy as np
import pytest

from sampling.host.params import SamplingParams
from sampling.host.rows import POSITION
from sampling.processors.penalties import PENALTIES
from sampling.state import uses
from tests.sampling.agreement import assert_feature_alone, assert_follows
from tests.sampling.batches import apply_alone, batch_of, random_logits, sample_batch
from tests.sampling.reference import Request, processed

PROMPT, OUTPUT = (1, 2, 2, 3), (2, 4, 4, 4, 5)  # token 2 is in both
KINDS = [
    SamplingParams(presence_penalty=1.5),
    SamplingParams(presence_penalty=-2.0),
    SamplingParams(frequency_penalty=0.7),
    SamplingParams(frequency_penalty=-0.7),
    SamplingParams(repetition_penalty=1.3),
    SamplingParams(repetition_penalty=0.5),
    SamplingParams(repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=-0.3),
]


@pytest.mark.parametrize("vocab_size", [7, 100, 600])
def test_each_alone_is_as_defined(vocab_size):
    requests = [Request(params, PROMPT, OUTPUT) for params in KINDS]
    logits = random_logits(1, len(requests), vocab_size)
    logits[:, 5], logits[:, 6] = 0.0, -np.inf
    assert_feature_alone("penalties", requests, logits)


def test_what_is_in_prompt_and_output_counts_where_it_should():
    logits = np.array([[-2.0, -2.0, 2.0, 2.0, 2.0, 0.0, 2.0]], np.float32)

    def after(**penalties):
        return apply_alone("penalties", batch_of([Request(SamplingParams(**penalties), PROMPT, OUTPUT)], logits))[0]

    assert after(repetition_penalty=2.0).tolist() == [-2.0, -4.0, 1.0, 1.0, 1.0, 0.0, 2.0]
    assert after(presence_penalty=1.0).tolist() == [-2.0, -2.0, 1.0, 2.0, 1.0, -1.0, 2.0]
    assert after(frequency_penalty=0.5).tolist() == [-2.0, -2.0, 1.5, 2.0, 0.5, -0.5, 2.0]
    # Repetition comes first: 2 / 2 - 0.5 * 3 - 1.
    assert after(repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=1.0)[4] == -1.5


def test_no_output_yet_leaves_only_the_prompt_to_penalise():
    logits = random_logits(2, 2, 7)
    requests = [Request(SamplingParams(presence_penalty=2.0, frequency_penalty=2.0), PROMPT),
                Request(SamplingParams(repetition_penalty=3.0), PROMPT)]  # fmt: skip
    changed = apply_alone("penalties", batch_of(requests, logits))
    assert changed[0].tobytes() == logits[0].tobytes()
    assert np.flatnonzero(changed[1] != logits[1]).tolist() == [1, 2, 3]


@pytest.mark.parametrize("repetition_penalty", [1e-50, 1e-40, 10.0])
def test_an_extreme_factor_makes_no_nan_of_what_is_banned(backend, repetition_penalty):
    params = SamplingParams(temperature=0.0, repetition_penalty=repetition_penalty, bad_words=((2,),))
    logits = np.array([[0.5, -1.0, 9.0, -2.0, -3.0, -4.0, -5.0]], np.float32)
    assert_follows(backend, [Request(params, PROMPT, OUTPUT)], logits)


def test_counts_rise_with_each_token_of_the_rows_that_use_them():
    counted = Request(SamplingParams(frequency_penalty=0.1), PROMPT, OUTPUT)
    other = Request(SamplingParams(), PROMPT, OUTPUT)
    batch = batch_of([counted, other], random_logits(0, 2, 7), num_rows=4)
    before = np.array(batch.states["penalties"].counts)
    count = jax.jit(lambda state, rows, tokens: PENALTIES.update(state, rows, tokens, uses(rows, "penalties")))
    state = batch.states["penalties"]
    for tokens in ([4, 4, 4, 4], [0, 1, 2, 3], [7, 7, 7, 7], [8, 8, 8, 8]):  # the last two stand for no token
        state = count(state, batch.rows, np.array(tokens, np.int32))
    after = np.asarray(state.counts)
    assert (after - before)[0].tolist() == [1, 0, 0, 0, 1, 0, 0]
    assert np.array_equal(after[1:], before[1:])


def test_counted_in_the_step_that_samples_as_if_staged_anew(backend):
    """What a preempted request finds again is what it would have had."""
    request = Request(SamplingParams(temperature=0.0, frequency_penalty=1.1, presence_penalty=0.3), PROMPT)
    batch = batch_of([request], np.zeros((1, 7), np.float32))
    for step in range(12):
        logits = random_logits(step, 1, 7)
        batch.logits[:1] = logits
        batch.rows.ints[0, POSITION] = len(request.token_ids)
        out, batch = sample_batch(backend, batch)
        assert out[0, 0] == processed(logits[0], request).argmax()
        request = Request(request.params, PROMPT, (*request.output, int(out[0, 0])))
    staged = batch_of([request], logits).states["penalties"]
    assert np.array_equal(np.asarray(batch.states["penalties"].counts)[0], staged.counts[0])
    assert np.array_equal(np.asarray(batch.states["penalties"].prompt)[0], staged.prompt[0])


def test_in_the_sampler(backend):
    requests = [Request(params, PROMPT, OUTPUT) for params in KINDS]
    requests += [Request(SamplingParams(temperature=0.0, frequency_penalty=2.0), PROMPT, OUTPUT)] * 20
    assert_follows(backend, requests, random_logits(3, len(requests), 7, spread=1.0))
