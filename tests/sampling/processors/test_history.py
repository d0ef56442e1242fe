"""The tokens of each slot, and those that steps in flight put behind them."""

import jax
import numpy as np

from sampling.host.params import SamplingParams
from sampling.host.rows import POSITION, SLOT, SamplingRows
from sampling.processors.history import HISTORY
from tests.sampling.batches import MAX_MODEL_LEN, NUM_SLOTS, admission_of, shape_of
from tests.sampling.reference import Request

ALL = np.ones(3, bool)  # rows that use it
append = jax.jit(HISTORY.update)


def rows_at(*places: tuple[int, int]) -> SamplingRows:
    """Rows of (slot, position), and one of padding."""
    rows = SamplingRows.padding(len(places) + 1, NUM_SLOTS)
    for row, place in enumerate(places):
        rows.ints[row, [SLOT, POSITION]] = place
    return rows


def test_a_row_is_prompt_and_output():
    row = np.asarray(HISTORY.row(admission_of(Request(SamplingParams(), (5, 6), (7,))), shape_of(10)))
    assert row.dtype == np.int32
    assert row.shape == (MAX_MODEL_LEN,)
    assert row[:3].tolist() == [5, 6, 7]


def test_the_longest_request_fits():
    tokens = tuple(index % 10 for index in range(MAX_MODEL_LEN))
    row = np.asarray(HISTORY.row(admission_of(Request(SamplingParams(), tokens)), shape_of(10)))
    assert row.tolist() == list(tokens)


def test_a_token_goes_where_its_row_says_and_padding_nowhere():
    state = np.full((NUM_SLOTS, MAX_MODEL_LEN), -9, np.int32)
    after = np.asarray(append(state, rows_at((3, 0), (1, 7)), np.array([11, 12, 13], np.int32), ALL[:3]))
    assert (after[3, 0], after[1, 7]) == (11, 12)
    assert (after != -9).sum() == 2


def test_of_a_row_that_does_not_use_it_nothing_is_kept():
    state = np.full((NUM_SLOTS, MAX_MODEL_LEN), -9, np.int32)
    uses = np.array([False, True, False])
    after = np.asarray(append(state, rows_at((3, 0), (1, 7)), np.array([11, 12, 13], np.int32), uses))
    assert after[1, 7] == 12
    assert (after != -9).sum() == 1


def test_nothing_is_written_past_the_end():
    """As for the token that a request at its longest samples while its last one is on its way."""
    state = np.full((NUM_SLOTS, MAX_MODEL_LEN), -9, np.int32)
    after = np.asarray(append(state, rows_at((3, MAX_MODEL_LEN)), np.array([11, 13], np.int32), ALL[:2]))
    assert (after == -9).all()


def test_appended_one_by_one_as_if_staged_anew():
    state = np.zeros((NUM_SLOTS, MAX_MODEL_LEN), np.int32)
    state[4] = HISTORY.row(admission_of(Request(SamplingParams(), (5, 6))), shape_of(10))
    for position, token in enumerate((7, 8, 9), start=2):
        state = append(state, rows_at((4, position)), np.array([token, 0], np.int32), ALL[:2])
    staged = HISTORY.row(admission_of(Request(SamplingParams(), (5, 6), (7, 8, 9))), shape_of(10))
    assert np.array_equal(np.asarray(state)[4], np.asarray(staged))
