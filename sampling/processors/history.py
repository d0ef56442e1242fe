"""The token history of each slot on the device, for features that look back at output in flight."""

import jax
import jax.numpy as jnp
import numpy as np

from sampling.host.rows import POSITION, SLOT, SamplingRows
from sampling.processors.logits_processor import Admission, Allocate, LogitsProcessor, StateShape


class TokenHistory(LogitsProcessor[jax.Array, np.ndarray]):
    """State: int32[num_slots, max_model_len]; only what lies before a row's position counts."""

    def allocate(self, shape: StateShape, allocate: Allocate) -> jax.Array:
        return allocate((shape.num_slots, shape.max_model_len), jnp.int32)

    def row(self, admission: Admission, shape: StateShape) -> np.ndarray:
        tokens = np.zeros(shape.max_model_len, np.int32)
        tokens[: len(admission.token_ids)] = admission.token_ids
        return tokens

    def update(self, state: jax.Array, rows: SamplingRows, tokens: jax.Array, uses: jax.Array) -> jax.Array:
        """Appends each row's new token; other rows, and padding, are dropped."""
        ints = jnp.asarray(rows.ints)
        slots = jnp.where(uses, ints[:, SLOT], state.shape[0])
        return state.at[slots, ints[:, POSITION]].set(tokens, mode="drop")


HISTORY = TokenHistory()
