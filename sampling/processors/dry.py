"""DRY ("don't repeat yourself", p-e-w, text-generation-webui, 2024; parameters as in llama.cpp).

A token that would continue a repetition is penalised: where the sequence ends with L tokens that
it has had before, the token that came after them then loses multiplier * base^(L - allowed length),
if L is at least the allowed length. Matches do not reach across breakers, nor further back than
`dry_penalty_last_n` tokens; breakers themselves are never penalised.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sampling.host.rows import POSITION, SamplingRows
from sampling.processors.feature import (
    Admission,
    Allocate,
    Feature,
    StateShape,
    StepInput,
    at_slots,
    column,
    pack,
    unpack,
)

MAX_DRY_PENALTY = 1e30  # finite: where everything else is banned, such a token still is better than none


class Dry(Feature[jax.Array, np.ndarray]):
    """State: uint32[num_slots, num_words], the breakers as bits."""

    def allocate(self, shape: StateShape, allocate: Allocate) -> jax.Array:
        return allocate((shape.num_slots, shape.num_words), jnp.uint32)

    def row(self, admission: Admission, shape: StateShape) -> np.ndarray:
        return pack(np.array(admission.params.dry_breaker_ids, np.int64), shape)

    def apply(self, logits: jax.Array, state: jax.Array, step: StepInput, uses: jax.Array) -> jax.Array:
        rows, history = step.rows, at_slots(step.states["history"], step.slots)
        is_breaker = unpack(at_slots(state, step.slots), logits.shape[-1])
        lengths = _repeat_lengths(history, is_breaker, rows, uses)
        excess = (lengths - column(rows, "dry_allowed_length")).astype(jnp.float32)
        penalty = column(rows, "dry_multiplier") * column(rows, "dry_base") ** excess
        is_repeat = (lengths > 0) & (excess >= 0) & ~is_breaker & uses[:, None]
        return jnp.where(is_repeat, logits - jnp.minimum(penalty, MAX_DRY_PENALTY), logits)


def _repeat_lengths(tokens: jax.Array, is_breaker: jax.Array, rows: SamplingRows, uses: jax.Array) -> jax.Array:
    """How long the repetition would be that each token continues, int32[num_rows, vocab_size].

    All earlier places are compared with the end at once, one token further back in each turn.

    Args:
        tokens: int32[num_rows, max_model_len].
        is_breaker: bool[num_rows, vocab_size].
    """
    num_rows, num_places = tokens.shape
    place, row = jnp.arange(num_places), jnp.arange(num_rows)[:, None]
    end = jnp.asarray(rows.ints)[:, POSITION, None]  # tokens that are known
    first = jnp.maximum(end - column(rows, "dry_penalty_last_n"), 0)

    def compare(carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        back, alive, lengths = carry
        wanted = jnp.take_along_axis(tokens, jnp.maximum(end - 1 - back, 0), axis=1)
        is_open = (end - 1 - back >= first) & ~jnp.take_along_axis(is_breaker, wanted, axis=1)
        alive &= (jnp.roll(tokens, back, axis=1) == wanted) & (place - back >= first) & is_open
        return back + 1, alive, lengths + alive

    alive = uses[:, None] & (place >= first) & (place < end - 1)
    start = (jnp.int32(0), alive, jnp.zeros(tokens.shape, jnp.int32))
    _, _, lengths = lax.while_loop(lambda carry: jnp.any(carry[1]), compare, start)
    following = jnp.roll(tokens, -1, axis=1)
    following = jnp.where(lengths > 0, following, is_breaker.shape[-1])
    return jnp.zeros(is_breaker.shape, jnp.int32).at[row, following].max(lengths, mode="drop")


DRY = Dry()
