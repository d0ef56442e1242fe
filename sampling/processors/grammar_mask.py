"""The grammar's mask: the tokens allowed next, as packed bits that the host has made for this step."""

import jax
import jax.numpy as jnp

from sampling.processors.logits_processor import LogitsProcessor, StepInput, unpack


class GrammarMask(LogitsProcessor[None, None]):
    """It keeps no state; the mask comes with the step."""

    def apply(self, logits: jax.Array, state: None, step: StepInput, uses: jax.Array) -> jax.Array:
        return apply_mask(logits, step.mask, uses)


def apply_mask(logits: jax.Array, mask: jax.Array, uses: jax.Array) -> jax.Array:
    """Bans the tokens outside their mask, uint32[num_rows, num_words], in the rows that use it, bool[num_rows]."""
    return jnp.where(uses[:, None] & ~unpack(mask, logits.shape[-1]), -jnp.inf, logits)


def masked_share(logits: jax.Array, mask: jax.Array, uses: jax.Array) -> jax.Array:
    """The probability, by the unmodified logits, of the tokens that its mask bans in each row; float32[num_rows]."""
    peak = jnp.max(logits, axis=-1, keepdims=True)
    weights = jnp.exp(logits - jnp.where(jnp.isfinite(peak), peak, 0.0))
    # The sum of what is taken, and not 1 less the rest: a small share keeps its digits.
    taken = jnp.sum(jnp.where(unpack(mask, logits.shape[-1]), 0.0, weights), axis=-1)
    return jnp.where(uses, taken / jnp.sum(weights, axis=-1), 0.0)


GRAMMAR_MASK = GrammarMask()
