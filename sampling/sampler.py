"""The `sample` program: from logits to tokens, all on the device.

Order of operations: temperature, min-p, top-k, top-p, draw. Each row depends on its own logits,
parameters, seed and position alone, so its tokens are the same in every batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from sampling.rows import (
    MIN_P,
    NOT_SAMPLED,
    POSITION,
    SEED_HIGH,
    SEED_LOW,
    SLOT,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    SamplingRows,
)
from sampling.slots import Slots
from sampling.threshold import top_k_mask, top_p_mask

_DRAW_GROUP = 256  # tokens; the draw sums groups first and then looks inside one


# Of logits, the rows' slots and the number of slots: the first of the best tokens of each row, or
# vocab_size where a logit is NaN; anything in padding rows.
Greedy: TypeAlias = Callable[[jax.Array, jax.Array, int], jax.Array]


def portable_greedy(logits: jax.Array, slot: jax.Array, num_slots: int) -> jax.Array:
    """A Greedy for every device, int32[num_rows].

    Plain reductions: XLA on CPU makes vector code of them, of an argmax it does not.
    """
    vocab_size = logits.shape[-1]
    best = jnp.max(logits, axis=-1, keepdims=True)
    first = jnp.min(jnp.where(logits == best, jnp.arange(vocab_size, dtype=jnp.int32), vocab_size), axis=-1)
    return jnp.where(jnp.isnan(best[:, 0]), vocab_size, first)


def sample(
    logits: jax.Array, slots: Slots, rows: SamplingRows, *, all_greedy: bool, greedy: Greedy = portable_greedy
) -> tuple[Slots, jax.Array]:
    """Draws one token for each row and remembers it in the row's slot.

    Args:
        logits: float32[num_rows, vocab_size].
        slots: donated.
        rows: what each row asks for; padding rows name the slot `num_slots`.
        all_greedy: static; leaves everything but the argmax out of the program.
        greedy: what finds the best tokens.

    Returns:
        The new slots, and int32[num_rows]: the token, NOT_SAMPLED in a padding row, or
        vocab_size where the logits hold a NaN.
    """
    num_slots = slots.last_token.shape[0]
    slot = jnp.asarray(rows.ints)[:, SLOT]
    best = greedy(logits, slot, num_slots)
    tokens = best
    if not all_greedy:
        is_greedy = rows.floats[:, TEMPERATURE] == 0.0
        tokens = jnp.where(is_greedy | (best == logits.shape[-1]), best, _draw(logits, rows))
    last_token = slots.last_token.at[slot].set(tokens, mode="drop")
    return Slots(last_token), jnp.where(slot < num_slots, tokens, NOT_SAMPLED)


def _draw(logits: jax.Array, rows: SamplingRows) -> jax.Array:
    """int32[num_rows]; rows at temperature 0 get any token."""
    ints, floats = jnp.asarray(rows.ints), jnp.asarray(rows.floats)
    temperature, top_k, top_p = floats[:, TEMPERATURE], ints[:, TOP_K], floats[:, TOP_P]
    scaled = logits / jnp.where(temperature == 0.0, 1.0, temperature)[:, None]
    best = jnp.max(scaled, axis=-1, keepdims=True)
    keep = scaled >= best + jnp.log(floats[:, MIN_P])[:, None]
    # A row that filters nothing gets an all-true mask from either branch: neighbours do not matter.
    keep &= lax.cond(
        jnp.any(top_k > 0), lambda: top_k_mask(jnp.where(keep, scaled, -jnp.inf), top_k), lambda: jnp.ones_like(keep)
    )
    weights = jnp.where(keep, jnp.exp(scaled - best), 0.0)
    keep = lax.cond(jnp.any(top_p < 1.0), lambda: top_p_mask(weights, top_p), lambda: jnp.ones_like(keep))
    weights = jnp.where(keep, weights, 0.0)
    return _invert_cdf(weights, _uniform(ints))


def _uniform(ints: jax.Array) -> jax.Array:
    """float32[num_rows] in [0, 1): a function of the row's seed and position alone."""

    def one(seed: jax.Array, position: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(seed, impl="threefry2x32")
        return jax.random.uniform(jax.random.fold_in(key, position))

    seeds = lax.bitcast_convert_type(ints[:, SEED_LOW : SEED_HIGH + 1], jnp.uint32)
    return jax.vmap(one)(seeds, ints[:, POSITION])


def _invert_cdf(weights: jax.Array, uniform: jax.Array) -> jax.Array:
    """The token at which the running sum of a row's weights passes `uniform` of its total.

    In two levels, sums of groups and then the tokens of one group: one random number and two
    short running sums a row instead of a vocabulary of Gumbel noise.

    Args:
        weights: float32[num_rows, vocab_size], non-negative, some positive in each row.
        uniform: float32[num_rows] in [0, 1).

    Returns:
        int32[num_rows]; never a token of weight 0.
    """
    num_rows, vocab_size = weights.shape
    padded = jnp.pad(weights, ((0, 0), (0, -vocab_size % _DRAW_GROUP)))
    groups = padded.reshape(num_rows, -1, _DRAW_GROUP)
    sums = jnp.sum(groups, axis=-1)
    running = jnp.cumsum(sums, axis=-1)
    target = uniform * running[:, -1]
    group = _first_beyond(sums, running, target)
    before = _pick(running, group) - _pick(sums, group)
    inside = jnp.take_along_axis(groups, group[:, None, None], axis=1)[:, 0]
    return group * _DRAW_GROUP + _first_beyond(inside, jnp.cumsum(inside, axis=-1), target - before)


def _first_beyond(weights: jax.Array, running: jax.Array, target: jax.Array) -> jax.Array:
    """First index of positive weight whose running sum exceeds the target.

    Where rounding leaves none, the last index of positive weight.
    """
    positive = weights > 0
    beyond = positive & (running > target[:, None])
    last_positive = weights.shape[-1] - 1 - jnp.argmax(positive[:, ::-1], axis=-1)
    return jnp.where(jnp.any(beyond, axis=-1), jnp.argmax(beyond, axis=-1), last_positive).astype(jnp.int32)


def _pick(values: jax.Array, index: jax.Array) -> jax.Array:
    """values[row, index[row]] for each row."""
    return jnp.take_along_axis(values, index[:, None], axis=1)[:, 0]
