"""DRY ("don't repeat yourself", p-e-w, text-generation-webui, 2024; parameters as in llama.cpp).

Where the sequence ends with L tokens that it has had before, the token that came after them loses multiplier * base^(L
- allowed length), if L is at least the allowed length. Matches reach neither across breakers nor further back than
`dry_penalty_last_n` tokens; breakers are never penalised.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sampling.host.rows import POSITION, SamplingRows
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

SHORT_TURNS = 32  # tokens of a repetition that are compared one by one, for all places at once
MAX_DRY_PENALTY = 1e30  # finite: where everything else is banned, such a token still is better than none


class Dry(LogitsProcessor[jax.Array, np.ndarray]):
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
    """The length of the repetition that each token would continue, int32[num_rows, vocab_size].

    All earlier places of tokens, int32[num_rows, max_model_len], are compared with the end at once, one token further
    back in each turn; repetitions longer than SHORT_TURNS go to an algorithm whose work does not grow with them.
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
    _, alive, lengths = lax.while_loop(lambda carry: jnp.any(carry[1]) & (carry[0] < SHORT_TURNS), compare, start)

    def all_lengths() -> jax.Array:
        back = end - 1 - place  # how far before the last token each place is; the same turns it around
        backwards = jnp.take_along_axis(tokens, jnp.maximum(back, 0), axis=1)
        is_end = (place >= end - first) | jnp.take_along_axis(is_breaker, backwards, axis=1)
        most = jnp.argmax(jnp.pad(is_end, ((0, 0), (0, 1)), constant_values=True), axis=1)[:, None]
        of_prefix = _prefix_lengths(backwards, jnp.where(jnp.any(alive, axis=1), (end - first)[:, 0], 0))
        of_place = jnp.minimum(jnp.take_along_axis(of_prefix, jnp.clip(back, 0, num_places - 1), axis=1), most)
        in_reach = uses[:, None] & (place >= first) & (place < end - 1)
        return jnp.where(jnp.any(alive, axis=1, keepdims=True) & in_reach, of_place, lengths)

    lengths = lax.cond(jnp.any(alive), all_lengths, lambda: lengths)
    following = jnp.roll(tokens, -1, axis=1)
    following = jnp.where(lengths > 0, following, is_breaker.shape[-1])
    return jnp.zeros(is_breaker.shape, jnp.int32).at[row, following].max(lengths, mode="drop")


def _prefix_lengths(tokens: jax.Array, num_tokens: jax.Array) -> jax.Array:
    """How many tokens from each place on equal the row's beginning, int32[num_rows, num_places].

    This is the Z algorithm (Gusfield, "Algorithms on Strings, Trees, and Sequences", 1997, section 1.4) for all rows in
    parallel, in at most two turns for a token. Place 0 stays 0.
    """
    row, last = jnp.arange(tokens.shape[0]), tokens.shape[1] - 1

    class Turn(NamedTuple):
        place: jax.Array
        length: jax.Array  # of the match at `place`, as far as it is known
        left: jax.Array  # where the match begins that reaches furthest
        right: jax.Array  # where it ends
        found: jax.Array

    def turn(at: Turn) -> Turn:
        here = at.place + at.length
        grows = (here < num_tokens) & (
            tokens[row, jnp.minimum(here, last)] == tokens[row, jnp.minimum(at.length, last)]
        )
        found = at.found.at[row, jnp.where(grows, last + 1, at.place)].set(at.length, mode="drop")
        is_further = ~grows & (here > at.right)
        left, right = jnp.where(is_further, at.place, at.left), jnp.where(is_further, here, at.right)
        place = at.place + ~grows
        known = jnp.minimum(jnp.maximum(right - place, 0), found[row, jnp.clip(place - left, 0, last)])
        return Turn(place, jnp.where(grows, at.length + 1, known), left, right, found)

    zero = jnp.zeros(row.shape, jnp.int32)
    start = Turn(zero + 1, zero, zero, zero, jnp.zeros(tokens.shape, jnp.int32))
    return lax.while_loop(lambda at: jnp.any(at.place < num_tokens), turn, start).found


DRY = Dry()
