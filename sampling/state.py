"""The sampler's state on the device, for each running request between steps."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from sampling.host.rows import BITS, USES, SamplingRows
from sampling.processors.logits_processor import Admission, Allocate, FeatureStates, StateShape
from sampling.registry import STATEFUL


class Slots(NamedTuple):
    """The state of every request, by slot; donated to each `sample` and replaced by its result."""

    last_token: jax.Array  # int32[num_slots], the token sampled last: the next step's input

    @classmethod
    def zeros(cls, num_slots: int) -> Slots:
        return cls(last_token=jnp.zeros(num_slots, jnp.int32))


def state_shapes(shape: StateShape) -> FeatureStates:
    """Shapes and types of the states of all stateful features."""
    return allocate_states(shape, cast(Allocate, jax.ShapeDtypeStruct))


def allocate_states(shape: StateShape, allocate: Allocate) -> FeatureStates:
    """The states of all stateful features, made by `allocate` with any content."""
    return {name: feature.allocate(shape, allocate) for name, feature in STATEFUL.items()}


def update_states(states: FeatureStates, rows: SamplingRows, tokens: jax.Array) -> FeatureStates:
    """The states after a step's tokens, int32[num_rows]."""
    return {name: feature.update(states[name], rows, tokens, uses(rows, name)) for name, feature in STATEFUL.items()}


def row_of(name: str, admission: Admission, shape: StateShape) -> Any:
    """What a feature writes into the slot of an admitted request, as numpy arrays."""
    return STATEFUL[name].row(admission, shape)


def write_row(state: Any, slot: jax.Array, row: Any) -> Any:
    """A feature's state with one slot's row replaced; the state is donated."""
    return jax.tree.map(lambda array, new: array.at[slot].set(new), state, row)


def uses(rows: SamplingRows, name: str) -> jax.Array:
    """Which rows use a feature, bool[num_rows]."""
    return jnp.asarray(rows.ints)[:, USES] & BITS[name] != 0
