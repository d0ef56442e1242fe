"""Random numbers, and the token at which the running sum of weights passes one."""

import jax
import numpy as np
import pytest

from sampling.draw import draw, uniforms
from sampling.host.rows import POSITION, SEED_HIGH, SEED_LOW, SamplingRows
from tests.sampling.agreement import ROUNDING, assert_frequencies
from tests.sampling.batches import random_logits

draw_of = jax.jit(draw)
uniforms_of = jax.jit(uniforms)


def rows_of(seeds: np.ndarray, positions: np.ndarray) -> SamplingRows:
    rows = SamplingRows.padding(len(seeds), 1)
    rows.ints[:, SEED_LOW : SEED_HIGH + 1] = seeds.astype(np.uint64)[:, None].view(np.int32)
    rows.ints[:, POSITION] = positions
    return rows


def numbers_of(seeds: object, positions: object) -> np.ndarray:
    seeds, positions = np.broadcast_arrays(np.asarray(seeds, np.uint64), positions)
    return np.asarray(uniforms_of(rows_of(seeds, positions)))


@pytest.mark.parametrize("vocab_size", [1, 7, 100, 256, 257, 600, 5000])  # around one group and over many
def test_the_token_at_a_share_of_the_running_sum(vocab_size):
    weights = np.exp(random_logits(1, 64, vocab_size))
    weights[:, 1:][np.random.default_rng(2).random((64, vocab_size - 1)) < 0.3] = 0.0
    uniform = np.linspace(0, 1, 64, endpoint=False, dtype=np.float32)
    tokens = np.asarray(draw_of(weights, uniform))
    for row in range(64):
        running = np.cumsum(weights[row].astype(np.float64)) / weights[row].astype(np.float64).sum()
        before = running[tokens[row]] - weights[row, tokens[row]] / weights[row].astype(np.float64).sum()
        assert weights[row, tokens[row]] > 0
        assert before - ROUNDING <= uniform[row] <= running[tokens[row]] + ROUNDING


@pytest.mark.parametrize("uniform", [0.0, 0.25, 0.5, 1 - 2**-24])
def test_a_weight_of_zero_is_never_drawn(uniform):
    weights = np.zeros((6, 600), np.float32)
    only = [0, 1, 255, 256, 511, 599]
    weights[np.arange(6), only] = [1.0, 1e-30, 1e30, 1.0, 3.0, 0.1]
    assert np.asarray(draw_of(weights, np.full(6, uniform, np.float32))).tolist() == only


def test_the_ends_of_the_interval():
    weights = np.zeros((2, 600), np.float32)
    weights[:, [3, 300, 520]] = 1.0
    ends = np.array([0.0, 1 - 2**-24], np.float32)
    assert np.asarray(draw_of(weights, ends)).tolist() == [3, 520]


def test_weights_of_very_different_size():
    """Rounding of sums may move a boundary, but never onto a token that has no weight."""
    weights = np.zeros((64, 5000), np.float32)
    weights[:, ::7] = 1e-7
    weights[:, 4000] = 1.0
    uniform = np.concatenate([np.linspace(0, 1e-4, 32), np.linspace(0.9999, 1 - 2**-24, 32)]).astype(np.float32)
    tokens = np.asarray(draw_of(weights, uniform))
    assert ((tokens % 7 == 0) | (tokens == 4000)).all()
    assert (np.diff(tokens) >= 0).all()


def test_frequencies():
    weights = np.tile(np.exp(random_logits(3, 1, 600, spread=1.0)), (4096, 1))
    uniform = numbers_of(5, np.arange(4096))[:, 0]
    exact = weights[0].astype(np.float64)
    assert_frequencies(np.asarray(draw_of(weights, uniform)), exact / exact.sum())


def test_numbers_are_uniform_and_their_columns_independent():
    numbers = numbers_of(np.arange(4096) // 64, np.arange(4096) % 64)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    cells = (numbers * 8).astype(int)
    assert_frequencies(cells[:, 0] * 8 + cells[:, 1], np.full(64, 1 / 64))
    assert_frequencies((cells[:-1, 0] * 8 + cells[1:, 0]), np.full(64, 1 / 64))  # of one position and the next


def test_numbers_are_those_of_seed_and_position_alone():
    seeds, positions = np.arange(40) * 12345 + 1, np.arange(40) * 3
    together = numbers_of(seeds, positions)
    alone = np.concatenate([numbers_of(seeds[i : i + 1], positions[i : i + 1]) for i in (7, 0, 39)])
    assert together[[7, 0, 39]].tobytes() == alone.tobytes()


def test_every_bit_of_the_seed_counts():
    seeds = np.concatenate([[0], 1 << np.arange(64, dtype=np.uint64)])
    assert len(set(numbers_of(seeds, 9)[:, 0].tolist())) == 65
    assert len(set(numbers_of(3, np.arange(65))[:, 0].tolist())) == 65


def test_numbers_are_jax_keys_folded_with_the_position():
    key = jax.random.fold_in(jax.random.key(77, impl="threefry2x32"), 5)
    expected = [float(jax.random.uniform(key)), float(jax.random.uniform(jax.random.fold_in(key, 1)))]
    high_and_low = 77 << 32  # a key is the seed's high word and then its low one, a row has them the other way round
    assert numbers_of([high_and_low], [5])[0].tolist() == expected
