"""What features have in common: packed sets of tokens, columns, slots."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampling.host.grammar import pack_words
from sampling.host.params import SamplingParams
from sampling.host.rows import FLOAT_COLUMNS, INT_COLUMNS, SamplingRows
from sampling.processors.logits_processor import Admission, StateShape, at_slots, column, pack, unpack

SIZES = [1, 7, 31, 32, 33, 100, 600]
_unpack = jax.jit(unpack, static_argnums=1)


@pytest.mark.parametrize("vocab_size", SIZES)
def test_words_enough_for_a_vocabulary(vocab_size):
    num_words = StateShape(1, vocab_size, 1).num_words
    assert 32 * (num_words - 1) < vocab_size <= 32 * num_words


@given(st.sampled_from(SIZES).flatmap(lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1)))))
def test_what_is_packed_is_unpacked(sized):
    vocab_size, tokens = sized
    words = pack(np.array(sorted(tokens), np.int64), StateShape(1, vocab_size, 1))
    assert words.dtype == np.uint32
    bits = np.asarray(_unpack(words[None], vocab_size))
    assert bits.shape == (1, vocab_size)
    assert np.flatnonzero(bits[0]).tolist() == sorted(tokens)


def test_token_t_is_bit_t_modulo_32_of_word_t_over_32():
    assert pack_words([0, 31, 33, 95], 3).tolist() == [1 | 1 << 31, 2, 1 << 31]
    assert pack_words([2, 2], 1).tolist() == [4]
    assert pack_words([], 2).tolist() == [0, 0]


def test_rows_have_sets_of_their_own():
    words = np.stack([pack_words([5], 4), pack_words([99, 0], 4)])
    assert np.argwhere(np.asarray(_unpack(words, 100))).tolist() == [[0, 5], [1, 0], [1, 99]]


def test_a_column_meets_logits():
    rows = SamplingRows.padding(3, 4)
    rows.ints[:, INT_COLUMNS["top_k"]], rows.floats[:, FLOAT_COLUMNS["top_p"]] = [5, 6, 7], [0.25, 0.5, 0.75]
    assert column(rows, "top_k").tolist() == [[5], [6], [7]]
    assert column(rows, "top_p").tolist() == [[0.25], [0.5], [0.75]]


def test_padding_takes_the_last_slots_values():
    array = np.arange(4)
    assert at_slots(jax.numpy.asarray(array), np.array([2, 4, 0])).tolist() == [2, 3, 0]


def test_the_output_is_what_follows_the_prompt():
    admission = Admission(SamplingParams(), np.array([1, 2, 3, 4], np.int32), 3, frozenset())
    assert admission.output.tolist() == [4]
