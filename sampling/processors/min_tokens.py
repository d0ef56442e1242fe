"""min_tokens: bans the tokens that end the request until its output has so many tokens."""

import jax
import jax.numpy as jnp
import numpy as np

from sampling.host.params import MAX_EOS_TOKEN_IDS, MAX_STOP_TOKEN_IDS
from sampling.host.rows import NUM_PROMPT_TOKENS, POSITION
from sampling.processors.logits_processor import (
    Admission,
    Allocate,
    LogitsProcessor,
    StateShape,
    StepInput,
    at_slots,
    column,
)

MAX_END_IDS = MAX_STOP_TOKEN_IDS + MAX_EOS_TOKEN_IDS  # the request's own and the model's


class MinTokens(LogitsProcessor[jax.Array, np.ndarray]):
    """State: int32[num_slots, MAX_END_IDS], the tokens that end the request, and past the vocabulary where fewer."""

    def allocate(self, shape: StateShape, allocate: Allocate) -> jax.Array:
        return allocate((shape.num_slots, MAX_END_IDS), jnp.int32)

    def row(self, admission: Admission, shape: StateShape) -> np.ndarray:
        end_ids = np.full(MAX_END_IDS, shape.vocab_size, np.int32)
        end_ids[: len(admission.stop_ids)] = sorted(admission.stop_ids)
        return end_ids

    def apply(self, logits: jax.Array, state: jax.Array, step: StepInput, uses: jax.Array) -> jax.Array:
        ints = jnp.asarray(step.rows.ints)
        num_output = ints[:, POSITION, None] - ints[:, NUM_PROMPT_TOKENS, None]
        is_short = uses[:, None] & (num_output < column(step.rows, "min_tokens"))
        end_ids = jnp.where(is_short, at_slots(state, step.slots), logits.shape[-1])
        return logits.at[jnp.arange(logits.shape[0])[:, None], end_ids].set(-jnp.inf, mode="drop")


MIN_TOKENS = MinTokens()
