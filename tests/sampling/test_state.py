"""What the device remembers of each request."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sampling.host.params import SamplingParams
from sampling.host.rows import BITS, USES, SamplingRows
from sampling.registry import STATEFUL
from sampling.state import Slots, allocate_states, row_of, uses, write_row
from tests.sampling.batches import NUM_SLOTS, admission_of, rubbish, shape_of
from tests.sampling.reference import Request

EVERYTHING = Request(
    SamplingParams(
        frequency_penalty=0.5, dry_multiplier=1.0, dry_breaker_ids=(3,), min_tokens=2, logit_bias=((4, 1.0),),
        allowed_token_ids=(1, 2, 4), bad_words=((1, 2),), logprobs=3, logprob_token_ids=(5,),
    ),
    prompt=(1, 2), output=(4, 4), stop_ids=frozenset({6}),
)  # fmt: skip


def test_slots_start_with_no_token():
    assert Slots.zeros(5).last_token.tolist() == [0] * 5


def test_every_feature_that_keeps_something_has_a_bit():
    assert set(BITS) == {*STATEFUL, "grammar", "drawn_logprobs"}  # these two keep nothing


@pytest.mark.parametrize("name", STATEFUL)
def test_a_row_is_written_into_its_slot_and_no_other(name):
    shape = shape_of(100)
    state = allocate_states(shape, lambda size, dtype: jnp.asarray(rubbish(size, dtype)))[name]
    row = row_of(name, admission_of(EVERYTHING), shape)
    after = jax.jit(write_row)(state, 5, row)
    leaves = zip(jax.tree.leaves(state), jax.tree.leaves(row), jax.tree.leaves(after), strict=True)
    for array, value, written in leaves:
        assert array.shape == written.shape == (NUM_SLOTS, *value.shape)
        assert array.dtype == written.dtype == value.dtype
        assert np.array_equal(written[5], value)
        others = np.arange(NUM_SLOTS) != 5
        assert np.array_equal(np.asarray(array)[others], np.asarray(written)[others])


def test_which_rows_use_a_feature():
    rows = SamplingRows.padding(4, NUM_SLOTS)
    rows.ints[:, USES] = [BITS["dry"], 0, BITS["dry"] | BITS["grammar"], BITS["grammar"]]
    assert np.asarray(uses(rows, "dry")).tolist() == [True, False, True, False]
    assert np.asarray(uses(rows, "grammar")).tolist() == [False, False, True, True]
    assert not np.asarray(uses(rows, "penalties")).any()
