"""Presence, frequency and repetition penalties, as vLLM and OpenAI define them.

Presence and frequency look at the output alone, repetition (Keskar et al., "CTRL", 2019) at prompt and output. The
counts are raised on the device, in the step that samples.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sampling.host.rows import SLOT, SamplingRows
from sampling.processors.logits_processor import (
    Admission,
    Allocate,
    LogitsProcessor,
    StateShape,
    StepInput,
    at_slots,
    column,
    pack,
    unpack,
)


class SeenTokens(NamedTuple):
    counts: jax.Array  # int32[num_slots, vocab_size], how often the output has each token
    prompt: jax.Array  # uint32[num_slots, num_words], the tokens of the prompt as bits


class Penalties(LogitsProcessor[SeenTokens, SeenTokens]):
    def allocate(self, shape: StateShape, allocate: Allocate) -> SeenTokens:
        return SeenTokens(
            allocate((shape.num_slots, shape.vocab_size), jnp.int32),
            allocate((shape.num_slots, shape.num_words), jnp.uint32),
        )

    def row(self, admission: Admission, shape: StateShape) -> SeenTokens:
        counts = np.bincount(admission.output, minlength=shape.vocab_size).astype(np.int32)
        prompt = pack(admission.token_ids[: admission.num_prompt_tokens], shape)
        return SeenTokens(counts, prompt)  # type: ignore[arg-type]  # numpy on its way to the device

    def apply(self, logits: jax.Array, state: SeenTokens, step: StepInput, uses: jax.Array) -> jax.Array:
        counts = at_slots(state.counts, step.slots)
        is_in_output = counts > 0
        is_seen = is_in_output | unpack(at_slots(state.prompt, step.slots), logits.shape[-1])
        repetition = column(step.rows, "repetition_penalty")
        penalised = jnp.where(logits > 0, logits / repetition, logits * repetition)
        penalised = jnp.where(is_seen, penalised, logits)
        penalised -= column(step.rows, "frequency_penalty") * counts
        penalised -= column(step.rows, "presence_penalty") * is_in_output
        return jnp.where(uses[:, None], penalised, logits)

    def update(self, state: SeenTokens, rows: SamplingRows, tokens: jax.Array, uses: jax.Array) -> SeenTokens:
        """Counts each row's new token."""
        slots = jnp.where(uses, jnp.asarray(rows.ints)[:, SLOT], state.counts.shape[0])
        return state._replace(counts=state.counts.at[slots, tokens].add(1, mode="drop"))


PENALTIES = Penalties()
