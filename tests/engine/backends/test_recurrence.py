"""Gated delta-nets of each backend against a plain recurrence in float64, and their states and snapshots bit by bit."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cache.storage import KVPages
from engine.backends.backends import BACKENDS
from engine.backends.base.backend import Backend
from engine.backends.base.operands import GatedDelta, Norm
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
    """A delta-net and sequences that are as long as its slots are many."""

    def __init__(
        self, *, num_key_heads: int, num_heads: int, key_dim: int, value_dim: int, kernel: int, is_tiled: bool,
        beta_scale: float = 1.0, has_row_decays: bool = False,
    ) -> None:  # fmt: skip
        random = np.random.default_rng(0)

        def normal(*shape: int) -> np.ndarray:
            return random.standard_normal(shape).astype(np.float32)

        channels = 2 * num_key_heads * key_dim + num_heads * value_dim
        self.constants = GatedDelta(
            num_key_heads=num_key_heads, num_heads=num_heads, key_dim=key_dim, value_dim=value_dim, is_tiled=is_tiled,
            beta_scale=beta_scale,
            convolution=jnp.asarray(normal(NUM_LAYERS, kernel, channels)),
            decay=None if has_row_decays else jnp.asarray(-np.exp(normal(NUM_LAYERS, num_heads))),
            time_bias=None if has_row_decays else jnp.asarray(normal(NUM_LAYERS, num_heads) - 2),
            has_sigmoid_gates=has_row_decays,
            norm=Norm(jnp.asarray(1 + normal(NUM_LAYERS, value_dim) / 4), EPSILON),
        )  # fmt: skip
        self.kernel = kernel
        self.sequences = [
            (
                normal(length, channels + num_heads * value_dim),
                normal(length, num_heads),
                -np.exp(normal(length, num_heads * key_dim) - 2) if has_row_decays else normal(length, num_heads),
            )
            for length in (150, 90, 70)
        ]
        self.states = (
            np.full((NUM_LAYERS, NUM_ENTRIES, kernel - 1, channels), np.nan, np.float32),
            np.full((NUM_LAYERS, NUM_ENTRIES, num_heads, key_dim, value_dim), np.nan, np.float32),
        )

    def reference(self, slot: int) -> np.ndarray:
        """The outputs of a whole sequence, float64[num_tokens, value_size]."""
        c, (qkvz, beta, alpha) = self.constants, self.sequences[slot]
        qkvz, beta, alpha = (x.astype(np.float64) for x in (qkvz, beta, alpha))
        convolution = np.asarray(c.convolution[LAYER], np.float64)
        if c.decay is None or c.time_bias is None:
            logarithms = alpha.reshape(len(alpha), c.num_heads, c.key_dim, 1)
        else:
            decay, bias = (np.asarray(x[LAYER], np.float64) for x in (c.decay, c.time_bias))
            logarithms = (decay * np.log1p(np.exp(alpha + bias)))[:, :, None, None]
        padded = np.concatenate([np.zeros((self.kernel - 1, c.num_channels)), qkvz[:, : c.num_channels]])
        state, outputs = np.zeros((c.num_heads, c.key_dim, c.value_dim)), []
        for t in range(len(qkvz)):
            mixed = (padded[t : t + self.kernel] * convolution).sum(axis=0)
            mixed = mixed / (1 + np.exp(-mixed))
            q, k, v = np.split(mixed, [c.key_size, 2 * c.key_size])
            q, k = (x.reshape(c.num_key_heads, c.key_dim) for x in (q, k))
            q, k = (x / np.sqrt((x * x).sum(axis=1, keepdims=True) + 1e-6) for x in (q, k))
            heads = np.arange(c.num_heads)
            of_key = heads % c.num_key_heads if c.is_tiled else heads // (c.num_heads // c.num_key_heads)
            q, k, v = q[of_key] / np.sqrt(c.key_dim), k[of_key], v.reshape(c.num_heads, c.value_dim)
            state = state * np.exp(logarithms[t])
            change = (v - np.einsum("hkv,hk->hv", state, k)) * (c.beta_scale / (1 + np.exp(-beta[t])))[:, None]
            state = state + k[:, :, None] * change[:, None]
            out = np.einsum("hkv,hk->hv", state, q)
            out = out / np.sqrt((out * out).mean(axis=1, keepdims=True) + EPSILON) * np.asarray(c.norm.weight[LAYER])
            gates = qkvz[t, c.num_channels :].reshape(out.shape)
            outputs.append((out * (1 if c.has_sigmoid_gates else gates) / (1 + np.exp(-gates))).ravel())
        return np.array(outputs)


CASES: dict[str, dict[str, Any]] = {
    "grouped": {"num_key_heads": 2, "num_heads": 4, "key_dim": 16, "value_dim": 32, "kernel": 4, "is_tiled": False},
    "tiled": {"num_key_heads": 2, "num_heads": 6, "key_dim": 48, "value_dim": 16, "kernel": 3, "is_tiled": True},
    "wide": {
        "num_key_heads": 1, "num_heads": 1, "key_dim": 128, "value_dim": 112, "kernel": 2, "is_tiled": False,
        "beta_scale": 2.0,
    },
    "rows": {
        "num_key_heads": 2, "num_heads": 2, "key_dim": 32, "value_dim": 48, "kernel": 4, "is_tiled": False,
        "has_row_decays": True,
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
    constants = case_of(name).constants

    def step(
        qkvz: jax.Array, beta: jax.Array, alpha: jax.Array, states: tuple[jax.Array, ...], rows: jax.Array,
        table: jax.Array,
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:  # fmt: skip
        layout = token_layout(rows, table, num_tiles=NUM_TILES, tile_size=TILE, page_size=16)
        kv = KVPages(jnp.zeros((1, 1, 2, 1, 16, 16)), None, states)
        out, kv = backend.recurrence(qkvz, beta, alpha, kv, jnp.int32(LAYER), layout, constants)
        return out, kv.states

    return jax.jit(step, donate_argnums=3)


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
@pytest.mark.parametrize("end", [1, 2, 64, 65, 128])
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
