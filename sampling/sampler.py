"""The `sample` program: from logits to tokens, all on the device.

Order of operations:

    logprobs            taken from the logits as they come
    allowed_token_ids, logit_bias, min_tokens, bad_words, the grammar's mask
    repetition, frequency and presence penalties, then DRY
    at temperature 0 the best token; else
    temperature, top-nσ, min-p, top-k, typical-p, top-p, XTC, draw

What each cut leaves is the whole for the next one. Each row depends on its own logits,
parameters, seed and position alone, so its tokens are the same in every batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from sampling.cuts.min_p import min_p_mask
from sampling.cuts.top_k import top_k_mask
from sampling.cuts.top_n_sigma import top_n_sigma_mask
from sampling.cuts.top_p import top_p_mask
from sampling.cuts.typical_p import typical_p_mask
from sampling.cuts.xtc import xtc_mask
from sampling.draw import draw, uniforms
from sampling.host.rows import (
    MIN_P,
    NOT_SAMPLED,
    NOTHING_LEFT,
    SLOT,
    TEMPERATURE,
    TOP_K,
    TOP_N_SIGMA,
    TOP_P,
    TYPICAL_P,
    XTC_PROBABILITY,
    XTC_THRESHOLD,
    SamplingRows,
)
from sampling.logprobs import LOGPROBS, NUM_COLUMNS, TOKEN, portable_logprobs
from sampling.processors.allowed_tokens import ALLOWED_TOKENS
from sampling.processors.bad_words import BAD_WORDS
from sampling.processors.dry import DRY
from sampling.processors.grammar_mask import apply_mask
from sampling.processors.history import HISTORY
from sampling.processors.logit_bias import LOGIT_BIAS
from sampling.processors.min_tokens import MIN_TOKENS_FEATURE
from sampling.processors.penalties import PENALTIES
from sampling.state import FeatureStates, Slots, uses

# Of logits, the rows' slots and the number of slots: the first of the best tokens of each row, or
# vocab_size where a logit is NaN; anything in padding rows.
Greedy: TypeAlias = Callable[[jax.Array, jax.Array, int], jax.Array]

# Of logits, rows and the number of slots: a token of each row drawn, or at temperature 0 the best;
# vocab_size where a logit is NaN; anything in padding rows.
Random: TypeAlias = Callable[[jax.Array, SamplingRows, int], jax.Array]

# Of logits, states, rows, packed grammar masks and the number of slots: int32[num_rows, NUM_COLUMNS]
# as sampling/logprobs.py lays them out (beside the token, only for rows that use logprobs), and the states.
Full: TypeAlias = Callable[[jax.Array, FeatureStates, SamplingRows, jax.Array, int], tuple[jax.Array, FeatureStates]]

# Of logits, tokens and listed tokens: as `portable_logprobs`.
LogprobsOf: TypeAlias = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


class SamplerBody(NamedTuple):
    """What does the work: portable XLA, or kernels of the device."""

    greedy: Greedy
    random: Random
    full: Full
    logprobs: LogprobsOf


def sample(
    logits: jax.Array, slots: Slots, rows: SamplingRows, *, all_greedy: bool, body: SamplerBody
) -> tuple[Slots, jax.Array]:
    """Draws one token for each row, of logits as they are, and remembers it in the row's slot.

    Args:
        logits: float32[num_rows, vocab_size].
        slots: donated.
        rows: what each row asks for; padding rows name the slot `num_slots`.
        all_greedy: static; leaves everything but the argmax out of the program.

    Returns:
        The new slots, and int32[num_rows]: the token, NOT_SAMPLED in a padding row, or
        vocab_size where the logits hold a NaN.
    """
    num_slots = slots.last_token.shape[0]
    slot = jnp.asarray(rows.ints)[:, SLOT]
    tokens = body.greedy(logits, slot, num_slots) if all_greedy else body.random(logits, rows, num_slots)
    return _remember(slots, slot, tokens), jnp.where(slot < num_slots, tokens, NOT_SAMPLED)


def sample_full(
    logits: jax.Array, slots: Slots, states: FeatureStates, rows: SamplingRows, mask: jax.Array, *, body: SamplerBody
) -> tuple[Slots, FeatureStates, jax.Array]:
    """Like `sample`, with every feature.

    Args:
        states: donated.
        mask: uint32[num_rows, num_words], what the grammars allow; of rows without one anything.

    Returns:
        Slots, states, and int32[num_rows, NUM_COLUMNS]; the token is as of `sample`, or
        vocab_size + NOTHING_LEFT where the request allows none.
    """
    num_slots = slots.last_token.shape[0]
    slot = jnp.asarray(rows.ints)[:, SLOT]
    out, states = body.full(logits, states, rows, mask, num_slots)
    tokens = out[:, TOKEN]
    out = out.at[:, TOKEN].set(jnp.where(slot < num_slots, tokens, NOT_SAMPLED))
    return _remember(slots, slot, tokens), states, out


def _remember(slots: Slots, slot: jax.Array, tokens: jax.Array) -> Slots:
    return Slots(slots.last_token.at[slot].set(tokens, mode="drop"))


# ---------------------------------------------------------------- the portable body


def portable_greedy(logits: jax.Array, slot: jax.Array, num_slots: int) -> jax.Array:
    """A Greedy for every device, int32[num_rows].

    Plain reductions: XLA on CPU makes vector code of them, of an argmax it does not.
    """
    vocab_size = logits.shape[-1]
    best = jnp.max(logits, axis=-1, keepdims=True)
    places = jnp.where(logits == best, jnp.arange(vocab_size, dtype=jnp.int32), vocab_size)
    # The maximum does not tell: XLA's vector code for CPUs drops a NaN.
    first = jnp.min(jnp.where(jnp.isnan(logits), -1, places), axis=-1)
    return jnp.where(first < 0, vocab_size, first)


def portable_random(logits: jax.Array, rows: SamplingRows, num_slots: int) -> jax.Array:
    """A Random for every device."""
    best = portable_greedy(logits, jnp.asarray(rows.ints)[:, SLOT], num_slots)
    is_greedy = rows.floats[:, TEMPERATURE] == 0.0
    return jnp.where(is_greedy | (best == logits.shape[-1]), best, _draw(logits, rows))


def portable_full(
    logits: jax.Array, states: FeatureStates, rows: SamplingRows, mask: jax.Array, num_slots: int
) -> tuple[jax.Array, FeatureStates]:
    """A Full for every device."""
    vocab_size = logits.shape[-1]
    processed = _process(logits, states, rows, mask)
    tokens = portable_random(processed, rows, num_slots)
    tokens = jnp.where(jnp.max(processed, axis=-1) == -jnp.inf, vocab_size + NOTHING_LEFT, tokens)
    tokens = jnp.where(jnp.any(jnp.isnan(logits), axis=-1), vocab_size, tokens)
    states = states._replace(
        history=HISTORY.append(states.history, rows, tokens, uses(rows, "history")),
        penalties=PENALTIES.count(states.penalties, rows, tokens, uses(rows, "penalties")),
    )
    out = lax.cond(
        jnp.any(uses(rows, "logprobs")),
        lambda: portable_logprobs(logits, tokens, LOGPROBS.listed(states.logprobs, rows)),
        lambda: jnp.pad(tokens[:, None], ((0, 0), (0, NUM_COLUMNS - 1))),
    )
    return out, states


PORTABLE = SamplerBody(portable_greedy, portable_random, portable_full, portable_logprobs)


def _process(logits: jax.Array, states: FeatureStates, rows: SamplingRows, mask: jax.Array) -> jax.Array:
    """Logits after everything that changes them; -inf where banned."""

    def apply(name: str, function: Callable[[jax.Array, jax.Array], jax.Array], logits: jax.Array) -> jax.Array:
        is_used = uses(rows, name)
        # A row that does not use a feature comes out of either branch as it was: neighbours do not matter.
        changed: jax.Array = lax.cond(jnp.any(is_used), lambda: function(logits, is_used), lambda: logits)
        return changed

    steps: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
        "allowed_tokens": lambda x, is_used: ALLOWED_TOKENS.apply(x, states.allowed_tokens, rows, is_used),
        "logit_bias": lambda x, is_used: LOGIT_BIAS.apply(x, states.logit_bias, rows, is_used),
        "min_tokens": lambda x, is_used: MIN_TOKENS_FEATURE.apply(x, states.min_tokens, rows, is_used),
        "bad_words": lambda x, is_used: BAD_WORDS.apply(x, states.bad_words, states.history, rows, is_used),
        "grammar": lambda x, is_used: apply_mask(x, mask, is_used),
        "penalties": lambda x, is_used: PENALTIES.apply(x, states.penalties, rows, is_used),
        "dry": lambda x, is_used: DRY.apply(x, states.dry, states.history, rows, is_used),
    }
    for name, function in steps.items():
        logits = apply(name, function, logits)
    return logits


def _draw(logits: jax.Array, rows: SamplingRows) -> jax.Array:
    """int32[num_rows]; rows at temperature 0 get any token."""
    ints, floats = jnp.asarray(rows.ints), jnp.asarray(rows.floats)
    temperature = floats[:, TEMPERATURE, None]
    best = jnp.max(logits, axis=-1, keepdims=True)
    # Less the best first: a tiny temperature then makes the others impossible instead of everything infinite.
    centred = jnp.where(logits == best, 0.0, logits - best)
    scaled = centred / jnp.where(temperature == 0.0, 1.0, temperature)
    uniform = uniforms(rows)

    def cut(keep: jax.Array, is_wanted: jax.Array, mask: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """`keep` less what a cut takes; a row that does not want it loses nothing in either branch."""
        left: jax.Array = lax.cond(jnp.any(is_wanted), lambda: mask(keep), lambda: jnp.ones_like(keep))
        return keep & left

    def weigh(keep: jax.Array) -> jax.Array:
        return jnp.where(keep, jnp.exp(scaled), 0.0)

    top_n_sigma, top_k = floats[:, TOP_N_SIGMA], ints[:, TOP_K]
    typical_p, top_p, xtc = floats[:, TYPICAL_P], floats[:, TOP_P], floats[:, XTC_PROBABILITY]
    keep = min_p_mask(scaled, floats[:, MIN_P])
    keep = cut(keep, top_n_sigma > 0.0, lambda _: top_n_sigma_mask(centred, top_n_sigma))
    keep = cut(keep, top_k > 0, lambda keep: top_k_mask(jnp.where(keep, centred, -jnp.inf), top_k))
    keep = cut(keep, typical_p < 1.0, lambda keep: typical_p_mask(weigh(keep), typical_p))
    keep = cut(keep, top_p < 1.0, lambda keep: top_p_mask(weigh(keep), top_p))
    keep = cut(
        keep, xtc > 0.0, lambda keep: xtc_mask(weigh(keep), xtc, floats[:, XTC_THRESHOLD], uniform[:, 1])
    )  # fmt: skip
    return draw(weigh(keep), uniform[:, 0])
