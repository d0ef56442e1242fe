"""Bursts: a program tells the host of each of its steps, and ends where the host wants no more."""

from __future__ import annotations

import gc
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from engine.backends.native.bursts import NativeBursts
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("variant")  # each has bursts of its own

NUM_ROWS = 3
FOR_EVER = 1_000_000  # steps of about a millisecond, for which no test waits
ARITHMETIC = 100_000  # sines, which make a step so long


@pytest.fixture(scope="module")
def program(variant):
    """Steps whose tokens are their number and those behind it; returns how many it has done."""

    def steps(name):
        def step(carry):
            index, _ = carry
            lengthy = jnp.sum(jnp.sin(jnp.arange(ARITHMETIC, dtype=jnp.float32) + index)) > ARITHMETIC  # never
            tokens = index + lengthy + jnp.arange(NUM_ROWS, dtype=jnp.int32)
            return index + 1, NativeBursts().tell(tokens, jnp.asarray(name))

        return lax.while_loop(lambda carry: carry[1], step, (jnp.int32(0), jnp.bool_(True)))[0]

    return jax.jit(steps)


def told(burst, step):
    tokens = burst.wait(step, PATIENCE_S)
    assert tokens is not None
    return tokens.tolist()


def test_each_step_is_told_in_its_order(program):
    burst = NativeBursts().open(NUM_ROWS, 5)
    num_steps = program(burst.name)
    assert [told(burst, step) for step in range(5)] == [[step, step + 1, step + 2] for step in range(5)]
    assert int(num_steps) == 5
    assert burst.cut() == 5
    assert told(burst, 2) == [2, 3, 4]  # again


def test_nothing_is_told_before_the_program_runs():
    burst = NativeBursts().open(NUM_ROWS, 2)
    assert burst.wait(0, 0.001) is None
    assert not burst.is_told(0)
    assert burst.cut() == 1  # the first step counts as begun


def test_a_program_that_is_cut_ends_behind_the_step_that_it_is_at(program):
    burst = NativeBursts().open(NUM_ROWS, FOR_EVER)
    num_steps = program(burst.name)  # returns at once, or the host could do nothing meanwhile
    assert told(burst, 7) == [7, 8, 9]
    num_begun = burst.cut()
    assert 8 <= num_begun < FOR_EVER
    assert int(num_steps) == num_begun
    assert burst.is_told(num_begun - 1)
    assert not burst.is_told(num_begun)
    assert told(burst, num_begun - 1) == [num_begun - 1, num_begun, num_begun + 1]


def test_a_burst_that_is_cut_before_it_begins_is_one_step(program):
    burst = NativeBursts().open(NUM_ROWS, FOR_EVER)
    assert burst.cut() == 1
    assert int(program(burst.name)) == 1


def test_the_host_waits_while_another_thread_holds_the_interpreter(program):
    """The program can tell although nobody else may run Python: a waiting host does not keep the lock."""
    burst = NativeBursts().open(NUM_ROWS, 1)
    seen = []
    waiter = threading.Thread(target=lambda: seen.append(told(burst, 0)))
    waiter.start()
    program(burst.name)
    waiter.join(PATIENCE_S)
    assert seen == [[0, 1, 2]]


def test_a_program_of_which_nobody_knows_any_more_ends(program):
    burst = NativeBursts().open(NUM_ROWS, FOR_EVER)
    name = np.array(burst.name)
    num_steps = program(name)
    told(burst, 0)
    del burst
    gc.collect()
    assert 1 <= int(num_steps) < FOR_EVER


def test_a_program_of_another_number_of_rows_fails(program):
    burst = NativeBursts().open(NUM_ROWS + 1, 2)
    with pytest.raises(jax.errors.JaxRuntimeError, match="another number of rows"):
        program(burst.name).block_until_ready()
