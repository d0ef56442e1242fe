"""The `sample` program: from logits to tokens, all on the device.

The order of operations is that of the rows in sampling/host/features.py:

    logprobs            are taken from the unmodified logits, or with `drawn_logprobs` from what is drawn from
    Stage.LOGITS        logits processors: sets of tokens, biases, bans, the grammar's mask, penalties
    temperature         at 0 the best token; else the logits are divided by it
    Stage.FILTER        filters of the distribution; each works on what the one before it has left
    draw

Each row depends on its own logits, parameters, seed and position alone, so its tokens are the same in every batch.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from sampling.draw import draw, uniforms
from sampling.filters.candidates import Candidates
from sampling.host.features import DRAWN_LOGPROBS, FEATURES, GRAMMAR, SamplingFeature, Stage
from sampling.host.rows import NOT_SAMPLED, NOTHING_LEFT, SLOT, TEMPERATURE, SamplingRows, value_when_off, values_of
from sampling.logprobs import LOGPROBS, NUM_COLUMNS, TOKEN, portable_logprobs
from sampling.processors.grammar_mask import masked_share
from sampling.processors.logits_processor import FeatureStates, StepInput
from sampling.registry import FILTERS, PROCESSORS
from sampling.state import Slots, update_states, uses

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


class SamplerBackend(NamedTuple):
    """An implementation of the sampler: portable XLA, or kernels of the device."""

    greedy: Greedy
    random: Random
    full: Full
    logprobs: LogprobsOf


def sample(
    logits: jax.Array, slots: Slots, rows: SamplingRows, *, all_greedy: bool, backend: SamplerBackend
) -> tuple[Slots, jax.Array]:
    """Draws one token for each row, of unmodified logits, and stores it in the row's slot; `slots` is donated.

    Padding rows name the slot `num_slots`; the static `all_greedy` leaves everything but the argmax out of the program.
    Returns the slots, and int32[num_rows]: the token, NOT_SAMPLED in a padding row, or vocab_size where the logits hold
    a NaN.
    """
    num_slots = slots.last_token.shape[0]
    slot = jnp.asarray(rows.ints)[:, SLOT]
    tokens = backend.greedy(logits, slot, num_slots) if all_greedy else backend.random(logits, rows, num_slots)
    return _remember(slots, slot, tokens), jnp.where(slot < num_slots, tokens, NOT_SAMPLED)


def sample_full(
    logits: jax.Array,
    slots: Slots,
    states: FeatureStates,
    rows: SamplingRows,
    mask: jax.Array,
    *,
    backend: SamplerBackend,
) -> tuple[Slots, FeatureStates, jax.Array]:
    """Like `sample`, with every feature; `states` is donated, too.

    `mask` is uint32[num_rows, num_words], the tokens that grammars allow. Returns slots, states, and int32[num_rows,
    NUM_COLUMNS]; the token may also be vocab_size + NOTHING_LEFT, where the request allows none.
    """
    num_slots = slots.last_token.shape[0]
    slot = jnp.asarray(rows.ints)[:, SLOT]
    out, states = backend.full(logits, states, rows, mask, num_slots)
    tokens = out[:, TOKEN]
    out = out.at[:, TOKEN].set(jnp.where(slot < num_slots, tokens, NOT_SAMPLED))
    return _remember(slots, slot, tokens), states, out


def _remember(slots: Slots, slot: jax.Array, tokens: jax.Array) -> Slots:
    return Slots(slots.last_token.at[slot].set(tokens, mode="drop"))


# ---------------------------------------------------------------- the portable backend


def portable_greedy(logits: jax.Array, slot: jax.Array, num_slots: int) -> jax.Array:
    """A Greedy for every device, int32[num_rows], of plain reductions, for which XLA on CPU makes vector code."""
    vocab_size = logits.shape[-1]
    best = jnp.max(logits, axis=-1, keepdims=True)
    places = jnp.where(logits == best, jnp.arange(vocab_size, dtype=jnp.int32), vocab_size)
    # The maximum does not show a NaN, because XLA's vector code for CPUs drops it.
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
    processed = _process(logits, StepInput(rows, states, mask))
    tokens = portable_random(processed, rows, num_slots)
    tokens = jnp.where(jnp.max(processed, axis=-1) == -jnp.inf, vocab_size + NOTHING_LEFT, tokens)
    tokens = jnp.where(jnp.any(jnp.isnan(logits), axis=-1), vocab_size, tokens)
    states = update_states(states, rows, tokens)
    out = lax.cond(
        jnp.any(uses(rows, "logprobs")),
        lambda: portable_logprobs(
            _told(logits, processed, tokens, rows),
            tokens,
            LOGPROBS.listed(states["logprobs"], rows),
            _masked(logits, rows, mask),
        ),
        lambda: jnp.pad(tokens[:, None], ((0, 0), (0, NUM_COLUMNS - 1))),
    )
    return out, states


PORTABLE = SamplerBackend(portable_greedy, portable_random, portable_full, portable_logprobs)


def _process(logits: jax.Array, step: StepInput) -> jax.Array:
    """Logits after everything that changes them; -inf where banned."""
    for feature in FEATURES:
        if feature.stage is Stage.LOGITS:
            logits = _apply(feature.name, logits, step)
    return logits


def _apply(name: str, logits: jax.Array, step: StepInput) -> jax.Array:
    """A row that does not use a feature comes out of either branch unchanged: neighbours do not matter."""
    is_used = uses(step.rows, name)
    changed: jax.Array = lax.cond(
        jnp.any(is_used), lambda: PROCESSORS[name].apply(logits, step.states.get(name), step, is_used), lambda: logits
    )
    return changed


def _told(logits: jax.Array, processed: jax.Array, tokens: jax.Array, rows: SamplingRows) -> jax.Array:
    """The logits of which each row's logprobs are told."""
    # A row without a token tells of its logits, in which a NaN shows.
    is_drawn = uses(rows, DRAWN_LOGPROBS) & (tokens < logits.shape[-1])

    def drawn() -> jax.Array:
        left = _candidates(processed, rows, uniforms(rows)[:, 1])
        is_greedy = jnp.asarray(rows.floats)[:, TEMPERATURE, None] == 0.0
        is_token = jnp.arange(logits.shape[-1]) == tokens[:, None]
        certain = jnp.where(is_token, 0.0, -jnp.inf)
        return jnp.where(is_greedy, certain, jnp.where(left.weights > 0.0, left.scaled, -jnp.inf))

    told: jax.Array = lax.cond(jnp.any(is_drawn), lambda: jnp.where(is_drawn[:, None], drawn(), logits), lambda: logits)
    return told


def _masked(logits: jax.Array, rows: SamplingRows, mask: jax.Array) -> jax.Array:
    """The probability that the grammars of rows that use logprobs have masked, float32[num_rows]."""
    is_used = uses(rows, GRAMMAR) & uses(rows, "logprobs") & ~uses(rows, DRAWN_LOGPROBS)
    share: jax.Array = lax.cond(
        jnp.any(is_used), lambda: masked_share(logits, mask, is_used), lambda: jnp.zeros(logits.shape[0], logits.dtype)
    )
    return share


def _draw(logits: jax.Array, rows: SamplingRows) -> jax.Array:
    """int32[num_rows]; rows at temperature 0 get any token."""
    uniform = uniforms(rows)
    return draw(_candidates(logits, rows, uniform[:, 1]).weights, uniform[:, 0])


def _candidates(logits: jax.Array, rows: SamplingRows, uniform: jax.Array) -> Candidates:
    """What the filters leave of each row; `uniform` is that of XTC, float32[num_rows]."""
    temperature = jnp.asarray(rows.floats)[:, TEMPERATURE, None]
    best = jnp.max(logits, axis=-1, keepdims=True)
    # The best logit is subtracted before the division. A tiny temperature then gives the other tokens probability 0,
    # where without the subtraction all of them would overflow.
    centred = jnp.where(logits == best, 0.0, logits - best)
    scaled = centred / jnp.where(temperature == 0.0, 1.0, temperature)
    left = Candidates(centred, scaled, jnp.ones(logits.shape, bool), uniform)
    for feature in FEATURES:
        if feature.stage is Stage.FILTER:
            left = _filter(feature, left, rows)
    return left


def _filter(feature: SamplingFeature, left: Candidates, rows: SamplingRows) -> Candidates:
    """The candidates that a filter leaves; a row for which it is off loses nothing in either branch."""
    columns = [jnp.asarray(values_of(column.name, rows)) for column in feature.columns]
    is_wanted = columns[0] != value_when_off(feature.columns[0].name)
    kept: jax.Array = lax.cond(
        jnp.any(is_wanted), lambda: FILTERS[feature.name](left, *columns), lambda: jnp.ones_like(left.keep)
    )
    return left._replace(keep=left.keep & kept)
