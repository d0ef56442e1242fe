"""bad_words: bans the last token of a sequence where the output ends with all that comes before it."""

import jax
import jax.numpy as jnp
import numpy as np

from sampling.host.params import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS
from sampling.host.rows import NUM_PROMPT_TOKENS, POSITION
from sampling.processors.logits_processor import Admission, Allocate, LogitsProcessor, StateShape, StepInput, at_slots

ANY = -1  # instead of a token: before a short sequence, and where there is no sequence
_NOT_OUTPUT = -2  # matches no token


class BadWords(LogitsProcessor[jax.Array, np.ndarray]):
    """State: int32[num_slots, MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS], sequences that end in the last column."""

    def allocate(self, shape: StateShape, allocate: Allocate) -> jax.Array:
        return allocate((shape.num_slots, MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS), jnp.int32)

    def row(self, admission: Admission, shape: StateShape) -> np.ndarray:
        words = np.full((MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS), ANY, np.int32)
        for index, word in enumerate(admission.params.bad_words):
            words[index, -len(word) :] = word
        return words

    def apply(self, logits: jax.Array, state: jax.Array, step: StepInput, uses: jax.Array) -> jax.Array:
        ints = jnp.asarray(step.rows.ints)
        words, tokens = at_slots(state, step.slots), at_slots(step.states["history"], step.slots)
        positions = ints[:, POSITION, None] + jnp.arange(1 - MAX_BAD_WORD_TOKENS, 0)
        tail = jnp.take_along_axis(tokens, jnp.maximum(positions, 0), axis=1)
        tail = jnp.where(positions >= ints[:, NUM_PROMPT_TOKENS, None], tail, _NOT_OUTPUT)
        before, last = words[:, :, :-1], words[:, :, -1]
        is_due = jnp.all((before == ANY) | (before == tail[:, None, :]), axis=-1)
        banned = jnp.where(uses[:, None] & is_due & (last >= 0), last, logits.shape[-1])
        return logits.at[jnp.arange(logits.shape[0])[:, None], banned].set(-jnp.inf, mode="drop")


BAD_WORDS = BadWords()
