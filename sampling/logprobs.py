"""Log probabilities of tokens, from the model's logits as they are: before any bias, penalty or temperature.

A row with `drawn_logprobs` has those of the distribution that its token was drawn from, behind all of these.

They leave the device in the same integer array as the tokens, as the bits of floats:

    column 0         the token
           1         its log probability
           2         its rank, from 1
           3         the probability of the tokens that a grammar's mask took away; 0 without a grammar, and of what
                     is drawn from
           4 …       ids of the best tokens, best first; of equals the smaller id first
          24 …       their log probabilities
          44 …       log probabilities of `logprob_token_ids`, in their order
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sampling.host.params import MAX_LOGPROB_TOKEN_IDS, MAX_LOGPROBS
from sampling.host.rows import SLOT, SamplingRows
from sampling.processors.logits_processor import Admission, Allocate, LogitsProcessor, StateShape, at_slots

TOKEN, OWN, RANK, MASKED, BEST_IDS = range(5)
BEST = BEST_IDS + MAX_LOGPROBS
LISTED = BEST + MAX_LOGPROBS
NUM_COLUMNS = LISTED + MAX_LOGPROB_TOKEN_IDS


class Logprobs(LogitsProcessor[jax.Array, np.ndarray]):
    """State: int32[num_slots, MAX_LOGPROB_TOKEN_IDS], the listed tokens; 0 where there are fewer."""

    def allocate(self, shape: StateShape, allocate: Allocate) -> jax.Array:
        return allocate((shape.num_slots, MAX_LOGPROB_TOKEN_IDS), jnp.int32)

    def row(self, admission: Admission, shape: StateShape) -> np.ndarray:
        token_ids = np.zeros(MAX_LOGPROB_TOKEN_IDS, np.int32)
        token_ids[: len(admission.params.logprob_token_ids)] = admission.params.logprob_token_ids
        return token_ids

    def listed(self, state: jax.Array, rows: SamplingRows) -> jax.Array:
        """The listed tokens of each row, int32[num_rows, MAX_LOGPROB_TOKEN_IDS]."""
        return at_slots(state, jnp.asarray(rows.ints)[:, SLOT])


def portable_logprobs(
    logits: jax.Array, tokens: jax.Array, listed: jax.Array, masked: jax.Array | None = None
) -> jax.Array:
    """The output columns of each row, int32[num_rows, NUM_COLUMNS]; those of an invalid token are undefined.

    `listed` are int32[num_rows, MAX_LOGPROB_TOKEN_IDS]; `masked` is the column of that name, None without a grammar.
    """
    # Less the peak first, then less the logarithm of the sum: large logits would swallow it.
    peak = jnp.max(logits, axis=-1, keepdims=True)
    peak = jnp.where(jnp.isfinite(peak), peak, 0.0)
    log_sum = jnp.log(jnp.sum(jnp.exp(logits - peak), axis=-1, keepdims=True))
    own = jnp.take_along_axis(logits, jnp.clip(tokens, 0, logits.shape[-1] - 1)[:, None], axis=1)
    rank = 1 + jnp.sum(logits > own, axis=-1, dtype=jnp.int32, keepdims=True)
    num_best = min(MAX_LOGPROBS, logits.shape[-1])
    best, best_ids = lax.top_k(logits, num_best)
    padding = ((0, 0), (0, MAX_LOGPROBS - num_best))  # a vocabulary of fewer tokens
    of_listed = jnp.take_along_axis(logits, listed, axis=1)
    columns = [
        tokens[:, None], _bits(own - peak - log_sum), rank,
        jnp.zeros_like(rank) if masked is None else _bits(masked)[:, None], jnp.pad(best_ids, padding),
        jnp.pad(_bits(best - peak - log_sum), padding), _bits(of_listed - peak - log_sum),
    ]  # fmt: skip
    return jnp.concatenate(columns, axis=1)


def _bits(values: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(values, jnp.int32)


LOGPROBS = Logprobs()
