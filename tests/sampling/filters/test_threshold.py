"""The search for a cut-off, and the keys that order as floats do."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sampling.filters.threshold import largest_threshold, ordered_bits

finite_or_not = st.floats(width=32, allow_nan=False, allow_subnormal=False)
keys_of = jax.jit(ordered_bits)


@given(st.lists(finite_or_not, min_size=8, max_size=8))
def test_keys_order_as_floats_do(values):
    floats = np.array(values, np.float32)
    keys = np.asarray(keys_of(floats)).astype(np.int64)
    assert np.array_equal(keys[:, None] > keys, floats[:, None] > floats)
    assert np.array_equal(keys[:, None] == keys, floats[:, None] == floats)


def test_zeros_of_both_signs_have_one_key_between_the_smallest_numbers():
    tiny = float(np.finfo(np.float32).tiny)
    keys = np.asarray(keys_of(np.array([-np.inf, -1.0, -tiny, -0.0, 0.0, tiny, 1.0, np.inf], np.float32)))
    assert keys[3] == keys[4] == 0
    assert (np.diff(keys) >= 0).all()
    assert len(set(keys.tolist())) == 7


@jax.jit
def _largest_below(limits: jax.Array, start: jax.Array) -> jax.Array:
    return largest_threshold(lambda candidate: candidate <= limits, start)


@given(st.lists(st.integers(0, 2**31 - 1), min_size=4, max_size=4))
def test_the_largest_that_keeps_enough_from_zero(limits):
    found = _largest_below(np.array(limits, np.int32), jnp.zeros(4, jnp.int32))
    assert np.asarray(found).tolist() == limits


@given(st.lists(st.integers(-(2**31), -1), min_size=4, max_size=4))
def test_the_largest_that_keeps_enough_from_the_lowest(limits):
    found = _largest_below(np.array(limits, np.int32), jnp.full(4, -(2**31), jnp.int32))
    assert np.asarray(found).tolist() == limits


def test_where_nothing_keeps_enough_it_is_the_start():
    assert np.asarray(_largest_below(np.array([-5] * 4, np.int32), jnp.zeros(4, jnp.int32))).tolist() == [0] * 4
