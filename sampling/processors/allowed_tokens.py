"""allowed_token_ids: bans every other token."""

import jax
import jax.numpy as jnp
import numpy as np

from sampling.processors.logits_processor import (
    Admission,
    Allocate,
    LogitsProcessor,
    StateShape,
    StepInput,
    at_slots,
    pack,
    unpack,
)


class AllowedTokens(LogitsProcessor[jax.Array, np.ndarray]):
    """State: uint32[num_slots, num_words], the allowed tokens as bits."""

    def allocate(self, shape: StateShape, allocate: Allocate) -> jax.Array:
        return allocate((shape.num_slots, shape.num_words), jnp.uint32)

    def row(self, admission: Admission, shape: StateShape) -> np.ndarray:
        return pack(np.array(admission.params.allowed_token_ids, np.int64), shape)

    def apply(self, logits: jax.Array, state: jax.Array, step: StepInput, uses: jax.Array) -> jax.Array:
        words = at_slots(state, step.slots)
        return jnp.where(uses[:, None] & ~unpack(words, logits.shape[-1]), -jnp.inf, logits)


ALLOWED_TOKENS = AllowedTokens()
