"""logit_bias: adds a value to the logits of a few tokens (OpenAI's parameter)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sampling.host.params import MAX_LOGIT_BIAS
from sampling.processors.logits_processor import Admission, Allocate, LogitsProcessor, StateShape, StepInput, at_slots


class Biases(NamedTuple):
    token_ids: jax.Array  # int32[num_slots, MAX_LOGIT_BIAS]; each once, and past the vocabulary where there are fewer
    values: jax.Array  # float32[num_slots, MAX_LOGIT_BIAS]


class LogitBias(LogitsProcessor[Biases, Biases]):
    def allocate(self, shape: StateShape, allocate: Allocate) -> Biases:
        size = (shape.num_slots, MAX_LOGIT_BIAS)
        return Biases(allocate(size, jnp.int32), allocate(size, jnp.float32))

    def row(self, admission: Admission, shape: StateShape) -> Biases:
        token_ids = np.full(MAX_LOGIT_BIAS, shape.vocab_size, np.int32)
        values = np.zeros(MAX_LOGIT_BIAS, np.float32)
        biases = admission.params.logit_bias
        token_ids[: len(biases)] = [token_id for token_id, _ in biases]
        values[: len(biases)] = [bias for _, bias in biases]
        return Biases(token_ids, values)  # type: ignore[arg-type]  # numpy on its way to the device

    def apply(self, logits: jax.Array, state: Biases, step: StepInput, uses: jax.Array) -> jax.Array:
        token_ids = jnp.where(uses[:, None], at_slots(state.token_ids, step.slots), logits.shape[-1])
        row = jnp.arange(logits.shape[0])[:, None]
        return logits.at[row, token_ids].add(at_slots(state.values, step.slots), mode="drop")


LOGIT_BIAS = LogitBias()
