"""The sampler against a plain numpy reference, and its draws against exact probabilities."""

from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampling.rows import (
    MIN_P,
    NOT_SAMPLED,
    POSITION,
    SEED_LOW,
    SLOT,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    SamplingRows,
)
from sampling.sampler import sample
from sampling.slots import Slots
from sampling.threshold import top_k_mask, top_p_mask

NUM_SLOTS = 4096
run = jax.jit(partial(sample, all_greedy=False))
run_greedy = jax.jit(partial(sample, all_greedy=True))


def rows_of(num_rows, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, position=0):
    rows = SamplingRows.padding(num_rows, NUM_SLOTS)
    rows.ints[:, SLOT] = np.arange(num_rows)
    rows.ints[:, TOP_K], rows.ints[:, SEED_LOW], rows.ints[:, POSITION] = top_k, seed, position
    rows.floats[:, TEMPERATURE], rows.floats[:, TOP_P], rows.floats[:, MIN_P] = temperature, top_p, min_p
    return rows


def exact_probabilities(logits, temperature, top_k, top_p, min_p):
    """What the parameters ask for, in float64 and by sorting."""
    scaled = logits.astype(np.float64) / temperature
    p = np.exp(scaled - scaled.max())
    p[p < min_p] = 0.0
    if top_k > 0:
        p[p < np.sort(p)[::-1][min(top_k, len(p)) - 1]] = 0.0
    if top_p < 1.0:
        order = np.argsort(-p)
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= top_p * p.sum()]] = 0.0
    return p / p.sum()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [(1.0, 0, 1.0, 0.0), (0.5, 0, 1.0, 0.0), (1.5, 5, 1.0, 0.0), (1.0, 0, 0.7, 0.0), (1.0, 0, 1.0, 0.2),
     (1.3, 12, 0.8, 0.05), (1.0, 1, 1.0, 0.0), (1.0, 0, 1e-9, 0.0), (2.0, 1000, 0.999, 0.0)],
)  # fmt: skip
def test_draws_follow_the_exact_probabilities(temperature, top_k, top_p, min_p):
    vocab_size, num_draws = 600, 4096  # more than one group of the two-level draw
    logits = (np.random.default_rng(1).standard_normal(vocab_size) * 3).astype(np.float32)
    logits[300:] -= 4
    rows = rows_of(
        num_draws, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=5, position=np.arange(num_draws)
    )
    _, tokens = run(np.tile(logits, (num_draws, 1)), Slots.zeros(NUM_SLOTS), rows)
    counts = np.bincount(np.asarray(tokens), minlength=vocab_size)
    expected = exact_probabilities(logits, temperature, top_k, top_p, min_p) * num_draws
    assert counts[expected == 0].sum() == 0
    # Chi-square over cells of at least 5 expected draws; the rest is one cell. 5 sigma of its own spread.
    big = expected >= 5
    observed = np.append(counts[big], counts[~big].sum())
    wanted = np.append(expected[big], expected[~big].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    chi_square = ((observed - wanted) ** 2 / wanted).sum()
    degrees = len(wanted) - 1
    assert chi_square <= degrees + 5 * np.sqrt(2 * degrees) + 1e-9


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 3, 40, 64, 1000]), st.sampled_from([0.05, 0.5, 0.9, 1.0]))
def test_masks_equal_those_of_sorting(seed, top_k, top_p):
    random = np.random.default_rng(seed)
    logits = np.round(random.standard_normal((3, 64)) * 4, 1).astype(np.float32)  # rounded: ties happen
    kept = np.asarray(top_k_mask(logits, np.full(3, top_k, np.int32)))
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    nucleus = np.asarray(top_p_mask(weights, np.full(3, top_p, np.float32)))
    for row in range(3):
        k = len(logits[row]) if top_k < 1 else min(top_k, len(logits[row]))
        assert np.array_equal(kept[row], logits[row] >= np.sort(logits[row])[-k])
        ordered = np.sort(weights[row])[::-1]
        shares = np.cumsum(ordered.astype(np.float64))
        enough = np.argmax(shares >= np.float32(top_p) * shares[-1] * (1 - 1e-6))
        expected = weights[row] >= (0 if top_p >= 1 else ordered[enough])
        # Where float32 sums decide the last token otherwise, the two sets differ by ties of one value.
        different = weights[row][nucleus[row] != expected]
        assert len(set(different.tolist())) <= 1
        assert nucleus[row].any()


def test_greedy_takes_the_first_of_the_best():
    logits = np.array([[0, 3, 3, 1], [-5, -7, -9, -5], [-np.inf, 2, -np.inf, 1]], np.float32)
    _, tokens = run_greedy(logits, Slots.zeros(NUM_SLOTS), rows_of(3, temperature=0.0))
    assert np.asarray(tokens).tolist() == [1, 0, 1]


def test_a_row_does_not_depend_on_its_neighbours():
    random = np.random.default_rng(3)
    logits = (random.standard_normal((8, 500)) * 2).astype(np.float32)
    settings_ = [dict(temperature=0.0), dict(), dict(top_k=3), dict(top_p=0.5), dict(min_p=0.3), dict(temperature=1.7),
                 dict(top_k=9, top_p=0.9), dict(seed=4)]  # fmt: skip
    rows = SamplingRows.padding(8, NUM_SLOTS)
    for index, wish in enumerate(settings_):
        one = rows_of(1, position=index, **wish)
        rows.ints[index], rows.floats[index] = one.ints[0], one.floats[0]
        rows.ints[index, SLOT] = index
    slots, together = run(logits, Slots.zeros(NUM_SLOTS), rows)
    for index in range(8):
        alone_rows = SamplingRows(rows.ints[index : index + 1], rows.floats[index : index + 1])
        _, alone = run(logits[index : index + 1], Slots.zeros(NUM_SLOTS), alone_rows)
        assert int(alone[0]) == int(together[index])
        assert int(slots.last_token[index]) == int(together[index])


def test_seed_and_position_decide_and_nothing_else():
    logits = np.zeros((64, 1000), np.float32)
    _, once = run(logits, Slots.zeros(NUM_SLOTS), rows_of(64, seed=7, position=np.arange(64)))
    _, again = run(logits, Slots.zeros(NUM_SLOTS), rows_of(64, seed=7, position=np.arange(64)))
    _, other = run(logits, Slots.zeros(NUM_SLOTS), rows_of(64, seed=8, position=np.arange(64)))
    assert np.array_equal(once, again)
    assert np.mean(np.asarray(once) == np.asarray(other)) < 0.1
    assert len(set(np.asarray(once).tolist())) > 50


def test_padding_rows_sample_nothing_and_touch_no_slot():
    rows = SamplingRows.padding(4, NUM_SLOTS)
    rows.ints[1, SLOT] = 2
    logits = np.tile(np.arange(10, dtype=np.float32), (4, 1))
    slots, tokens = run_greedy(logits, Slots.zeros(NUM_SLOTS), rows)
    assert np.asarray(tokens).tolist() == [NOT_SAMPLED, 9, NOT_SAMPLED, NOT_SAMPLED]
    assert np.flatnonzero(slots.last_token).tolist() == [2]


@pytest.mark.parametrize("program", [run, run_greedy])
def test_a_nan_is_reported_and_stays_in_its_row(program):
    logits = np.tile(np.arange(10, dtype=np.float32), (2, 1))
    logits[0, 3] = np.nan
    _, tokens = program(logits, Slots.zeros(NUM_SLOTS), rows_of(2, temperature=0.0))
    assert np.asarray(tokens).tolist() == [10, 9]
