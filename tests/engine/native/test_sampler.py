"""The native sampler against the portable one and against float64.

Sums over a vocabulary are of float32 in both, so a token may be another one where a random number or a
share falls on a border; that it does is then shown with the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engine.native.sampler import NATIVE
from sampling.draw import uniforms
from sampling.logprobs import BEST, BEST_IDS, LISTED, NUM_COLUMNS, OWN, RANK, TOKEN
from sampling.params import MAX_LOGPROB_TOKEN_IDS, SamplingParams
from sampling.rows import (
    MIN_P,
    NOTHING_LEFT,
    POSITION,
    SLOT,
    TEMPERATURE,
    TOP_K,
    TOP_N_SIGMA,
    TOP_P,
    TYPICAL_P,
    USES,
    XTC_PROBABILITY,
    SamplingRows,
)
from sampling.sampler import PORTABLE
from sampling.state import FeatureStates
from sampling.usage import BITS
from tests.engine.native.sampling_reference import Row, is_right, token_at, weights_of
from tests.engine.native.sampling_steps import (
    ADJUSTMENTS,
    ALL,
    CUTS,
    NUM_SLOTS,
    Request,
    Step,
    make_logits,
    make_request,
    make_step,
)

KINDS = ("normal", "peaked", "flat", "ties")
portable_full = jax.jit(partial(PORTABLE.full, num_slots=NUM_SLOTS))
uniforms_of = jax.jit(uniforms)


@cache
def program(variant: str, name: str, num_slots: int = NUM_SLOTS) -> Callable[..., Any]:
    """A function of the native body, compiled once for a variant."""
    return jax.jit(partial(getattr(NATIVE, name), num_slots=num_slots))


def full(variant: str, logits: np.ndarray, step: Step) -> tuple[np.ndarray, FeatureStates]:
    """By the native body, with copies of the states."""
    states = jax.tree.map(jnp.array, step.states)
    run = program(variant, "full", num_slots=step.states.history.shape[0])
    columns, states = run(logits, states, step.rows, step.mask)
    return np.asarray(columns), jax.tree.map(np.asarray, states)


def random_tokens(variant: str, logits: np.ndarray, rows: SamplingRows) -> np.ndarray:
    return np.asarray(program(variant, "random")(logits, rows))


def uncut(step: Step) -> SamplingRows:
    """The same rows at temperature 1 without cuts: of logits that hold few tokens, these may be drawn."""
    ints, floats = step.rows.ints.copy(), step.rows.floats.copy()
    ints[:, TOP_K] = 0
    floats[:, [TEMPERATURE, TOP_P, TYPICAL_P]] = 1.0
    floats[:, [MIN_P, TOP_N_SIGMA, XTC_PROBABILITY]] = 0.0
    return SamplingRows(ints, floats)


# ---------------------------------------------------------------- against float64


@cache
def drawn_case(vocab_size: int, kind: str) -> tuple[np.ndarray, Step, np.ndarray]:
    random = np.random.default_rng(vocab_size)
    num_rows = 64 if vocab_size < 5000 else 24
    logits = make_logits(random, num_rows, vocab_size, kind)
    logits[random.random(logits.shape) < 0.02] = -np.inf
    logits[:, 0] = 1.0  # one at least is finite
    names: list[tuple[str, ...]] = [(), CUTS, *((name,) for name in CUTS), ("top_k", "top_p")]
    names += [tuple(name for name in CUTS if random.random() < 0.5) for _ in range(num_rows - len(names))]
    step = make_step(random, [make_request(random, vocab_size, use) for use in names], vocab_size)
    return logits, step, np.asarray(uniforms_of(step.rows))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab_size", [1, 7, 100, 600, 49152, 49153])
def test_draws_are_those_of_exact_arithmetic(variant, vocab_size, kind):
    logits, step, uniform = drawn_case(vocab_size, kind)
    tokens = random_tokens(variant, logits, step.rows)
    for row, token in enumerate(tokens):
        assert is_right(token, logits[row], Row.of(step.rows, row), uniform[row]), row


@pytest.mark.parametrize(
    "cut",
    [{"top_k": 1}, {"top_k": 50}, {"top_k": 1000}, {"top_k": 30_000}, {"top_p": 1e-6}, {"top_p": 0.3},
     {"top_p": 0.95}, {"min_p": 1.0}, {"min_p": 0.01}, {"top_n_sigma": 1.0}, {"typical_p": 0.5},
     {"xtc_probability": 1.0, "xtc_threshold": 0.001}],
)  # fmt: skip
def test_random_numbers_at_either_end(variant, cut):
    """They fall on the first and the last of what a cut leaves, if that is no mere trace of the whole."""
    random = np.random.default_rng(3)
    logits = make_logits(random, 2, 20_000, "normal")
    step = make_step(random, [Request(SamplingParams(temperature=0.9, **cut))] * 2, 20_000)
    numbers = np.array([[0.0, 0.0], [1.0 - 2.0**-24, 0.0]], np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.native.sampler.uniforms", lambda rows: jnp.asarray(numbers))
        tokens = np.asarray(NATIVE.random(logits, step.rows, NUM_SLOTS))
    left = [weights_of(logits[row], Row.of(step.rows, row), 0.0) for row in range(2)]
    assert tokens.tolist() == [token_at(weights, number) for weights, number in zip(left, numbers[:, 0], strict=True)]


# ---------------------------------------------------------------- against the portable body


@cache
def full_case(vocab_size: int, num_rows: int, kind: str) -> tuple[np.ndarray, Step, np.ndarray, Any]:
    random = np.random.default_rng(num_rows)
    logits = make_logits(random, num_rows, vocab_size, kind)
    logits[random.random(logits.shape) < 0.02] = -np.inf
    names: list[tuple[str, ...]] = [ALL, ADJUSTMENTS, *((name,) for name in ALL)][:num_rows]
    names += [tuple(name for name in ALL if random.random() < 0.4) for _ in range(num_rows - len(names))]
    requests: list[Request | None] = [make_request(random, vocab_size, use) for use in names]
    for row in range(2, num_rows, 9):
        requests[row] = None
    step = make_step(random, requests, vocab_size)
    step.rows.floats[5::7, TEMPERATURE] = 0.0
    columns, states = portable_full(logits, jax.tree.map(jnp.array, step.states), step.rows, step.mask)
    return logits, step, np.asarray(columns), jax.tree.map(np.asarray, states)


@pytest.mark.parametrize(("vocab_size", "num_rows"), [(7, 64), (100, 64), (600, 64), (600, 1), (49152, 3), (49153, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_every_feature_as_the_portable_body(variant, vocab_size, num_rows, kind):
    logits, step, wanted, wanted_states = full_case(vocab_size, num_rows, kind)
    columns, states = full(variant, logits, step)
    is_real = step.rows.ints[:, SLOT] < NUM_SLOTS
    same = is_real & (columns[:, TOKEN] == wanted[:, TOKEN])
    assert same.sum() >= is_real.sum() - (num_rows > 3)  # on a border of the float32 that the portable body sums in
    if not same[is_real].all():
        return  # the states differ as well
    for name, state, wanted_state in zip(states._fields, states, wanted_states, strict=True):
        for array, wanted_array in zip(jax.tree.leaves(state), jax.tree.leaves(wanted_state), strict=True):
            np.testing.assert_array_equal(array, wanted_array, err_msg=name)
    uses_logprobs = is_real & (step.rows.ints[:, USES] & BITS["logprobs"] != 0)
    check_logprobs(columns[uses_logprobs], wanted[uses_logprobs])
    assert not columns[~uses_logprobs, OWN:].any()


def check_logprobs(columns: np.ndarray, wanted: np.ndarray) -> None:
    for first, last in ((RANK, BEST_IDS), (BEST_IDS, BEST)):
        np.testing.assert_array_equal(columns[:, first:last], wanted[:, first:last])
    for first, last in ((OWN, RANK), (BEST, NUM_COLUMNS)):
        logprobs = columns[:, first:last].view(np.float32)
        np.testing.assert_allclose(logprobs, wanted[:, first:last].view(np.float32), atol=1e-5)


@pytest.mark.parametrize("vocab_size", [7, 600, 49153])
def test_logprobs_are_exact(variant, vocab_size):
    random = np.random.default_rng(0)
    logits = np.concatenate([make_logits(random, 2, vocab_size, kind) for kind in KINDS])
    logits[1, ::3] = -np.inf
    tokens = random.integers(0, vocab_size, len(logits), np.int32)
    listed = random.integers(0, vocab_size, (len(logits), MAX_LOGPROB_TOKEN_IDS), np.int32)
    columns = np.asarray(jax.jit(NATIVE.logprobs)(logits, tokens, listed))
    exact = logits.astype(np.float64)
    exact -= exact.max(axis=1, keepdims=True)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    own = np.take_along_axis(exact, tokens[:, None], axis=1)
    best_ids = np.argsort(-logits, axis=1, kind="stable")[:, :20]
    num_best = best_ids.shape[1]
    np.testing.assert_array_equal(columns[:, TOKEN], tokens)
    np.testing.assert_array_equal(
        columns[:, RANK], 1 + (logits > np.take_along_axis(logits, tokens[:, None], 1)).sum(1)
    )
    np.testing.assert_array_equal(columns[:, BEST_IDS : BEST_IDS + num_best], best_ids)
    for first, wanted in (
        (OWN, own),
        (BEST, np.take_along_axis(exact, best_ids, 1)),
        (LISTED, np.take_along_axis(exact, listed, 1)),
    ):
        logprobs = columns[:, first : first + wanted.shape[1]].view(np.float32)
        np.testing.assert_allclose(logprobs, wanted, atol=1e-5)


# ---------------------------------------------------------------- what is odd


@pytest.mark.parametrize("vocab_size", [600, 49153])
def test_padding_is_not_read_and_changes_nothing(variant, vocab_size):
    random = np.random.default_rng(0)
    logits = make_logits(random, 3, vocab_size, "normal")
    logits[1] = np.nan
    request = make_request(random, vocab_size, ALL)
    step = make_step(random, [request, None, request], vocab_size, num_slots=2)
    columns, states = full(variant, logits, step)
    assert (columns[[0, 2], TOKEN] < vocab_size).all()
    slots, positions = step.rows.ints[[0, 2], SLOT], step.rows.ints[[0, 2], POSITION]
    wanted = step.states.history.copy()
    wanted[slots, positions] = columns[[0, 2], TOKEN]
    np.testing.assert_array_equal(states.history, wanted)
    wanted = step.states.penalties.counts.copy()
    wanted[slots, columns[[0, 2], TOKEN]] += 1
    np.testing.assert_array_equal(states.penalties.counts, wanted)


@pytest.mark.parametrize("place", [0, 70, 4096, 49152])
def test_a_row_with_nan_has_no_token(variant, place):
    random = np.random.default_rng(0)
    logits = make_logits(random, 3, 49153, "normal")
    logits[1, place] = np.nan
    logits[2, 5] = -np.inf
    banned = SamplingParams(logit_bias=((place, -100.0),))  # it is told of a token that is out of the question as well
    step = make_step(random, [Request(banned)] * 3, 49153)
    assert (random_tokens(variant, logits, step.rows) == 49153).tolist() == [False, True, False]
    columns, _ = full(variant, logits, step)
    assert (columns[:, TOKEN] == 49153).tolist() == [False, True, False]


def test_where_everything_is_banned_there_is_no_token(variant):
    random = np.random.default_rng(0)
    request = Request(SamplingParams(allowed_token_ids=(5,), presence_penalty=1.0))
    step = make_step(random, [request, request], 100)
    logits = make_logits(random, 2, 100, "normal")
    logits[1, 5] = -np.inf
    columns, states = full(variant, logits, step)
    assert columns[:, TOKEN].tolist() == [5, 100 + NOTHING_LEFT]
    before, slots = step.states.penalties.counts, step.rows.ints[:, SLOT]
    assert (states.penalties.counts - before)[slots].sum(axis=1).tolist() == [1, 0]


@pytest.mark.parametrize("cuts", [(), CUTS])
def test_what_is_banned_is_never_drawn(variant, cuts):
    random = np.random.default_rng(0)
    logits = np.full((64, 300), -np.inf, np.float32)
    logits[:, [17, 255, 299]] = [-80.0, 0.0, -1.0]
    step = make_step(random, [make_request(random, 300, cuts)] * 64, 300)
    assert set(random_tokens(variant, logits, step.rows)) <= {17, 255, 299}
    assert set(random_tokens(variant, logits, uncut(step))) == {255, 299}


@pytest.mark.parametrize("temperature", [1e-30, 1e-38, 2.0])
def test_extreme_logits_and_temperatures(variant, temperature):
    logits = np.random.default_rng(0).standard_normal((4, 600)).astype(np.float32)
    logits[1, 300] = np.inf
    logits[2, 0], logits[2, 599] = -3e38, 3e38
    logits[3] = -np.inf
    logits[3, 77] = -3e38
    step = make_step(np.random.default_rng(0), [Request(SamplingParams(temperature=temperature))] * 4, 600)
    tokens = random_tokens(variant, logits, step.rows)
    assert tokens[1:].tolist() == [300, 599, 77]
    assert temperature == 2.0 or tokens[0] == logits[0].argmax()


def test_equal_infinities_are_drawn_alike(variant):
    logits = np.zeros((64, 300), np.float32)
    logits[:, [3, 270]] = np.inf
    step = make_step(np.random.default_rng(0), [Request(SamplingParams())] * 64, 300)
    assert set(random_tokens(variant, logits, step.rows)) == {3, 270}
    logits[:] = -np.inf
    assert len(set(random_tokens(variant, logits, step.rows))) > 30


# ---------------------------------------------------------------- a row alone


@pytest.mark.parametrize("vocab_size", [600, 49153])
def test_a_row_is_the_same_alone_and_among_others(variant, vocab_size):
    random = np.random.default_rng(1)
    num_rows = 12
    logits = make_logits(random, num_rows, vocab_size, "normal")
    requests = [make_request(random, vocab_size, ALL if row % 3 else ()) for row in range(num_rows)]
    step = make_step(random, requests, vocab_size)
    together, _ = full(variant, logits, step)
    order = random.permutation(num_rows)
    rows = SamplingRows(step.rows.ints[order], step.rows.floats[order])
    moved, _ = full(variant, logits[order], Step(step.states, rows, step.mask[order]))
    np.testing.assert_array_equal(moved, together[order])
    rows = SamplingRows(step.rows.ints[4:5], step.rows.floats[4:5])
    alone, _ = full(variant, logits[4:5], Step(step.states, rows, step.mask[4:5]))
    np.testing.assert_array_equal(alone, together[4:5])


def test_donated_states_are_updated_in_place(variant):
    random = np.random.default_rng(0)
    step = make_step(random, [make_request(random, 600, ALL)], 600)
    states = jax.tree.map(jnp.array, step.states)
    places = [array.unsafe_buffer_pointer() for array in (states.history, states.penalties.counts)]
    run = jax.jit(partial(NATIVE.full, num_slots=NUM_SLOTS), donate_argnums=1)
    _, after = run(make_logits(random, 1, 600, "normal"), states, step.rows, step.mask)
    assert [array.unsafe_buffer_pointer() for array in (after.history, after.penalties.counts)] == places


def test_a_wrong_call_is_an_error(variant):
    random = np.random.default_rng(0)
    step = make_step(random, [make_request(random, 100, ALL)], 100)
    logits = make_logits(random, 1, 101, "normal")
    with pytest.raises(jax.errors.JaxRuntimeError, match="eagre: counts and sets of tokens do not fit"):
        full(variant, logits, step)
    two_rows = make_step(random, [None, None], 100).rows
    with pytest.raises(jax.errors.JaxRuntimeError, match="eagre: the sampler's rows have another shape"):
        random_tokens(variant, logits, two_rows)
    with pytest.raises(jax.errors.JaxRuntimeError, match="eagre: logits, tokens and listed tokens differ in rows"):
        jax.block_until_ready(NATIVE.logprobs(logits, np.zeros(2, np.int32), np.zeros((1, 64), np.int32)))
