"""State spaces of each backend against a plain recurrence in float64, and their states and snapshots bit by bit."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cache.storage import KVPages
from engine.backends.backends import BACKENDS
from engine.backends.base.backend import Backend
from engine.backends.base.operands import Convolution, Norm, StateSpace
from engine.backends.base.token_layout import token_layout
from tests.engine.backends.recurrent_steps import (
    LAYER,
    NUM_ENTRIES,
    NUM_LAYERS,
    NUM_SLOTS,
    NUM_TILES,
    TILE,
    Program,
    Row,
    Steps,
)

EPSILON = 1e-3


class Case:
    """A convolution and a state space behind it, and sequences that are as long as its slots are many."""

    def __init__(
        self, *, num_heads: int, head_dim: int, num_groups: int, state_size: int, kernel: int,
        is_by_channel: bool = False, has_norm: bool = True, norms_first: bool = False,
        limits: tuple[float, float] = (0.0, math.inf), has_bias: bool = True,
    ) -> None:  # fmt: skip
        random = np.random.default_rng(0)

        def normal(*shape: int) -> np.ndarray:
            return random.standard_normal(shape).astype(np.float32)

        size = num_heads * head_dim
        channels = size + 2 * num_groups * state_size
        num_steps = size if is_by_channel else num_heads
        self.kernel, self.channels, self.num_steps = kernel, channels, num_steps
        # Gates come before the channels, or by channel behind them.
        self.convolution = Convolution(
            jnp.asarray(normal(NUM_LAYERS, kernel, channels)),
            jnp.asarray(normal(NUM_LAYERS, channels)) if has_bias else None,
            first=0 if is_by_channel else size,
        )
        self.space = StateSpace(
            num_heads=num_heads, head_dim=head_dim, num_groups=num_groups, state_size=state_size,
            decay=jnp.asarray(-np.exp(normal(NUM_LAYERS, *((state_size, size) if is_by_channel else (num_heads,))))),
            time_bias=jnp.asarray(normal(NUM_LAYERS, num_steps) - 2), skip=jnp.asarray(normal(NUM_LAYERS, num_steps)),
            is_by_channel=is_by_channel, time_limits=limits,
            norm=Norm(jnp.asarray(1 + normal(NUM_LAYERS, size) / 4), EPSILON) if has_norm else None,
            norms_first=norms_first, first_gate=channels if is_by_channel else 0,
        )  # fmt: skip
        self.sequences = [(normal(length, size + channels), normal(length, num_steps)) for length in (150, 90, 70)]
        self.states = (
            np.full((NUM_LAYERS, NUM_ENTRIES, kernel - 1, channels), np.nan, np.float32),
            np.full((NUM_LAYERS, NUM_ENTRIES, num_heads, state_size, head_dim), np.nan, np.float32),
        )

    def reference(self, slot: int) -> np.ndarray:
        """The outputs of a whole sequence, float64[num_tokens, value_size]."""
        c = self.space
        projected, steps = (x.astype(np.float64) for x in self.sequences[slot])
        first = self.convolution.first
        weights, decay, bias, skip = (
            np.asarray(x[LAYER], np.float64) for x in (self.convolution.weights, c.decay, c.time_bias, c.skip)
        )
        inputs = np.concatenate([np.zeros((self.kernel - 1, self.channels)), projected[:, first:][:, : self.channels]])
        gates = projected[:, c.first_gate :][:, : c.value_size]
        heads = (c.num_heads, c.head_dim)
        if c.is_by_channel:
            decay = decay.reshape(c.state_size, *heads).swapaxes(0, 1)
        else:
            decay = decay[:, None, None]
        state, outputs = np.zeros((c.num_heads, c.state_size, c.head_dim)), []
        for t in range(len(projected)):
            mixed = (inputs[t : t + self.kernel] * weights).sum(axis=0)
            if self.convolution.bias is not None:
                mixed = mixed + np.asarray(self.convolution.bias[LAYER])
            mixed = mixed / (1 + np.exp(-mixed))
            values, b, d = np.split(mixed, [c.value_size, c.value_size + c.num_groups * c.state_size])
            of_group = np.arange(c.num_heads) // (c.num_heads // c.num_groups)
            b, d = (x.reshape(c.num_groups, -1)[of_group][:, :, None] for x in (b, d))
            step = np.clip(np.log1p(np.exp(steps[t] + bias)), *c.time_limits).reshape(c.num_heads, -1)
            values = values.reshape(heads)
            state = state * np.exp(step[:, None] * decay) + b * (values * step)[:, None]
            out = ((state * d).sum(axis=1) + values * skip.reshape(c.num_heads, -1)).ravel()
            outputs.append(self._finished(out, gates[t] / (1 + np.exp(-gates[t]))))
        return np.array(outputs)

    def _finished(self, out: np.ndarray, gates: np.ndarray) -> np.ndarray:
        c = self.space
        if c.norm is None:
            return out * gates
        out = out if c.norms_first else out * gates
        groups = out.reshape(c.num_groups, -1)
        groups = groups / np.sqrt((groups * groups).mean(axis=1, keepdims=True) + EPSILON)
        out = groups.ravel() * np.asarray(c.norm.weight[LAYER], np.float64)
        return out * gates if c.norms_first else out


CASES: dict[str, dict[str, Any]] = {
    "groups": {"num_heads": 4, "head_dim": 32, "num_groups": 2, "state_size": 16, "kernel": 4},
    "limited": {
        "num_heads": 3, "head_dim": 16, "num_groups": 1, "state_size": 48, "kernel": 3, "norms_first": True,
        "limits": (0.05, 0.2), "has_bias": False,
    },
    "by channel": {
        "num_heads": 2, "head_dim": 48, "num_groups": 1, "state_size": 16, "kernel": 2, "is_by_channel": True,
        "has_norm": False,
    },
}  # fmt: skip


@cache
def case_of(name: str) -> Case:
    return Case(**CASES[name])


every_case = pytest.mark.parametrize("name", CASES)


@cache
def program(name: str, backend_name: str) -> Program:
    """A step of a case, in which the states are donated."""
    backend = next(backend for backend in BACKENDS if backend.name == backend_name)
    case = case_of(name)

    def step(
        projected: jax.Array, time_steps: jax.Array, states: tuple[jax.Array, ...], rows: jax.Array, table: jax.Array
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        layout = token_layout(rows, table, num_tiles=NUM_TILES, tile_size=TILE, page_size=16)
        kv, layer = KVPages(jnp.zeros((1, 1, 2, 1, 16, 16)), None, states), jnp.int32(LAYER)
        mixed, kv = backend.convolution(projected, kv, layer, layout, case.convolution)
        out, kv = backend.state_space(mixed, projected, time_steps, kv, layer, layout, case.space)
        return out, kv.states

    return jax.jit(step, donate_argnums=2)


def steps_of(name: str, backend: Backend) -> Steps:
    case = case_of(name)
    return Steps(program(name, backend.name), case.sequences, case.states)


@every_case
def test_outputs_are_those_of_the_plain_recurrence(name: str, backend: Backend) -> None:
    outputs = steps_of(name, backend).run(Row(0, 0, 150), Row(1, 0, 90), Row(2, 0, 70))
    for slot, output in enumerate(outputs):
        expected = case_of(name).reference(slot)
        assert np.abs(expected).max() > 0.5
        np.testing.assert_allclose(output, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@every_case
def test_chunks_decode_rows_and_neighbours_change_no_bit(name: str, backend: Backend) -> None:
    whole, steps = steps_of(name, backend), steps_of(name, backend)
    expected = [whole.run(Row(slot, 0, len(steps.sequences[slot][0])))[0] for slot in range(NUM_SLOTS)]
    got: list[list[np.ndarray]] = [[], [], []]
    for parts in (
        (Row(0, 0, 3), Row(1, 0, 65)),
        (Row(1, 65, 66), Row(0, 3, 130), Row(2, 0, 69)),
        (Row(2, 69, 70), Row(1, 66, 67), Row(0, 130, 131)),
        (Row(0, 131, 132), Row(1, 67, 90)),
        (Row(0, 132, 150),),
    ):
        for part, output in zip(parts, steps.run(*parts, is_at_the_end=True), strict=True):
            got[part.slot].append(output)
    for slot in range(NUM_SLOTS):
        np.testing.assert_array_equal(np.concatenate(got[slot]), expected[slot])
        for one, other in zip(steps.entry(slot), whole.entry(slot), strict=True):
            np.testing.assert_array_equal(one, other)


@every_case
@pytest.mark.parametrize("end", [1, 64, 65])
def test_a_snapshot_is_the_state_at_its_place_and_another_sequence_goes_on_from_it(
    name: str, backend: Backend, end: int
) -> None:
    steps, alone = steps_of(name, backend), steps_of(name, backend)
    [expected] = steps.run(Row(0, 0, 150, save=4, save_end=end))
    alone.run(Row(0, 0, end))
    saved = alone.entry(0)
    for one, other in zip(steps.entry(4), saved, strict=True):
        np.testing.assert_array_equal(one, other)
    steps.slots = {2: 0}  # a branch of the first sequence
    [first] = steps.run(Row(2, end, end + 1, load=4))
    [rest] = steps.run(Row(2, end + 1, 150))
    np.testing.assert_array_equal(np.concatenate([first, rest]), expected[end:])
    for one, other in zip(steps.entry(4), saved, strict=True):
        np.testing.assert_array_equal(one, other)


@every_case
def test_other_layers_and_entries_are_left_alone(name: str, backend: Backend) -> None:
    steps = steps_of(name, backend)
    steps.run(Row(0, 0, 90, save=5, save_end=32))
    for state in map(np.asarray, steps.states):
        assert np.isnan(state[1 - LAYER]).all()
        assert np.isnan(state[LAYER, [1, 2, 3, 4]]).all()
        assert np.isfinite(state[LAYER, [0, 5]]).all()
