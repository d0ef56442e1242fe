"""What a grammar allows next, as packed bits that the host has made for this step."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from sampling.processors.feature import Feature, StepInput, unpack


class GrammarMask(Feature[None, None]):
    """It keeps nothing; the mask comes with the step."""

    def apply(self, logits: jax.Array, state: None, step: StepInput, uses: jax.Array) -> jax.Array:
        return apply_mask(logits, step.mask, uses)


def apply_mask(logits: jax.Array, mask: jax.Array, uses: jax.Array) -> jax.Array:
    """Leaves to the rows that have a grammar the tokens of their mask alone.

    Args:
        mask: uint32[num_rows, num_words]; of other rows anything.
        uses: bool[num_rows].
    """
    return jnp.where(uses[:, None] & ~unpack(mask, logits.shape[-1]), -jnp.inf, logits)


GRAMMAR_MASK = GrammarMask()
