"""What the device remembers of each running request between steps."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Slots(NamedTuple):
    """Device-resident state by slot; donated to each `sample` and replaced by its result."""

    last_token: jax.Array  # int32[num_slots], the token sampled last: the next step's input

    @classmethod
    def zeros(cls, num_slots: int) -> Slots:
        return cls(last_token=jnp.zeros(num_slots, jnp.int32))
