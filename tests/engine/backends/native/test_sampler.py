"""The native sampler where tests/sampling, which runs with every variant too, does not go: whole vocabularies."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engine.backends.native.sampler import NATIVE
from sampling.host.params import MAX_LOGPROB_TOKEN_IDS, SamplingParams
from sampling.host.rows import SamplerVariant, SamplingRows
from sampling.processors.logits_processor import FeatureStates
from sampling.sampler import SamplerBackend
from tests.native_variants import native_body
from tests.sampling.agreement import assert_follows
from tests.sampling.batches import NUM_SLOTS, batch_of, random_logits
from tests.sampling.random_requests import random_requests
from tests.sampling.reference import Request, distribution

KINDS = ("normal", "peaked", "flat", "ties")
CUTS = [
    {"top_k": 1}, {"top_k": 64}, {"top_k": 65}, {"top_k": 5000}, {"top_k": 30_000}, {"top_p": 0.05}, {"top_p": 0.95},
    {"top_p": 0.999}, {"min_p": 1e-4}, {"min_p": 0.3}, {"min_p": 1.0}, {"typical_p": 0.2}, {"typical_p": 0.95},
    {"top_n_sigma": 0.7}, {"top_n_sigma": 2.5}, {"xtc_probability": 1.0, "xtc_threshold": 0.001},
    {"xtc_probability": 0.5, "xtc_threshold": 0.0}, {"top_k": 300, "top_p": 0.9}, {},
    {"top_k": 3000, "top_p": 0.98, "min_p": 1e-4, "typical_p": 0.97, "top_n_sigma": 3.0, "xtc_probability": 0.5},
]  # fmt: skip


@pytest.fixture
def backend(variant: str) -> SamplerBackend:
    return native_body(variant)


def logits_of(kind: str, num_rows: int, vocab_size: int) -> np.ndarray:
    """float32[num_rows, vocab_size]; `peaked` looks like a model's, of `ties` many are equal."""
    random = np.random.default_rng(vocab_size)
    logits = random_logits(vocab_size, num_rows, vocab_size, spread=0.3 if kind == "flat" else 3.0)
    if kind == "peaked":
        for row in logits:
            row[random.integers(0, vocab_size, 8)] += random.uniform(5, 20, 8).astype(np.float32)
    if kind == "ties":
        logits = np.round(logits) + 0.0
    logits[random.random(logits.shape) < 0.02] = -np.inf
    logits[:, 0] = 1.0  # one at least is finite
    return logits


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab_size", [1, 256, 49152, 49153])
def test_every_cut_of_a_whole_vocabulary(backend, vocab_size, kind):
    requests = [Request(SamplingParams(temperature=0.3 + index % 5 * 0.3, **cut)) for index, cut in enumerate(CUTS)]
    assert_follows(backend, requests, logits_of(kind, len(requests), vocab_size), level=SamplerVariant.RANDOM)


@pytest.mark.parametrize("vocab_size", [49152, 49153])
def test_every_feature_of_a_whole_vocabulary(backend, vocab_size):
    requests = random_requests(12, 12, vocab_size)
    assert_follows(backend, requests, logits_of("normal", len(requests), vocab_size))


@pytest.mark.parametrize("cut", CUTS[:16], ids=str)
def test_random_numbers_at_either_end(backend, monkeypatch, cut):
    """They fall on the first and the last of what a cut leaves."""
    logits, request = random_logits(3, 1, 20_000), Request(SamplingParams(temperature=0.9, **cut))
    batch = batch_of([request] * 2, np.tile(logits, (2, 1)), num_rows=2)
    numbers = np.array([[0.0, 0.0], [1.0 - 2.0**-24, 0.0]], np.float32)
    monkeypatch.setattr("engine.backends.native.sampler.uniforms", lambda rows: jnp.asarray(numbers))
    tokens = np.asarray(backend.random(batch.logits, batch.rows, NUM_SLOTS))
    left = np.flatnonzero(distribution(logits[0], request).total)
    assert tokens.tolist() == [left[0], left[-1]]


def places_of(states: FeatureStates) -> list[int]:
    """Where the arrays lie that a step changes."""
    return [array.unsafe_buffer_pointer() for array in jax.tree.leaves((states["history"], states["penalties"]))]


def test_donated_states_are_updated_in_place(backend):
    request = Request(SamplingParams(dry_multiplier=1.0, frequency_penalty=1.0))
    batch = batch_of([request], random_logits(0, 1, 600))
    states = jax.tree.map(jnp.array, batch.states)
    places = places_of(states)
    run = jax.jit(partial(backend.full, num_slots=NUM_SLOTS), donate_argnums=1)
    _, after = run(batch.logits, states, batch.rows, batch.mask)
    assert places_of(after) == places


def test_a_wrong_call_is_an_error(variant):
    batch = batch_of([Request(SamplingParams())], random_logits(0, 1, 100), num_rows=1)
    wider = random_logits(0, 1, 200)
    with pytest.raises(jax.errors.JaxRuntimeError, match="eagre: counts and sets of tokens do not fit"):
        jax.block_until_ready(NATIVE.full(wider, batch.states, batch.rows, batch.mask, NUM_SLOTS))
    with pytest.raises(jax.errors.JaxRuntimeError, match="eagre: the sampler's rows have another shape"):
        jax.block_until_ready(NATIVE.random(wider, SamplingRows.padding(2, NUM_SLOTS), NUM_SLOTS))
    listed = np.zeros((1, MAX_LOGPROB_TOKEN_IDS), np.int32)
    with pytest.raises(jax.errors.JaxRuntimeError, match="eagre: logits, tokens and listed tokens differ in rows"):
        jax.block_until_ready(NATIVE.logprobs(wider, np.zeros(2, np.int32), listed))
