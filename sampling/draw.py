"""Random numbers, and the draw of a token from weights."""

import jax
import jax.numpy as jnp
from jax import lax

from sampling.host.rows import POSITION, SEED_HIGH, SEED_LOW, SamplingRows

_GROUP = 256  # tokens; the draw sums groups first and then looks inside one
_XTC = 1  # folded into the key of the second number


def uniforms(rows: SamplingRows) -> jax.Array:
    """float32[num_rows, 2] in [0, 1), for the draw and for XTC: functions of a row's seed and position alone."""

    def two(seed: jax.Array, position: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.wrap_key_data(seed, impl="threefry2x32"), position)
        return jnp.stack([jax.random.uniform(key), jax.random.uniform(jax.random.fold_in(key, _XTC))])

    ints = jnp.asarray(rows.ints)
    seeds = lax.bitcast_convert_type(ints[:, SEED_LOW : SEED_HIGH + 1], jnp.uint32)
    return jax.vmap(two)(seeds, ints[:, POSITION])


def draw(weights: jax.Array, uniform: jax.Array) -> jax.Array:
    """The token at which the running sum of a row's weights passes `uniform` of its total; int32[num_rows].

    In two levels, sums of groups and then the tokens of one group: one random number and two short running sums a row
    instead of a vocabulary of Gumbel noise. Weights are float32[num_rows, vocab_size], some positive in each row, and a
    token of weight 0 is never drawn.
    """
    num_rows, vocab_size = weights.shape
    padded = jnp.pad(weights, ((0, 0), (0, -vocab_size % _GROUP)))
    groups = padded.reshape(num_rows, -1, _GROUP)
    sums = jnp.sum(groups, axis=-1)
    running = jnp.cumsum(sums, axis=-1)
    target = uniform * running[:, -1]
    group = _first_beyond(sums, running, target)
    before = _pick(running, group) - _pick(sums, group)
    inside = jnp.take_along_axis(groups, group[:, None, None], axis=1)[:, 0]
    return group * _GROUP + _first_beyond(inside, jnp.cumsum(inside, axis=-1), target - before)


def _first_beyond(weights: jax.Array, running: jax.Array, target: jax.Array) -> jax.Array:
    """First index of positive weight whose running sum exceeds the target; the last one where rounding leaves none."""
    positive = weights > 0
    beyond = positive & (running > target[:, None])
    last_positive = weights.shape[-1] - 1 - jnp.argmax(positive[:, ::-1], axis=-1)
    return jnp.where(jnp.any(beyond, axis=-1), jnp.argmax(beyond, axis=-1), last_positive).astype(jnp.int32)


def _pick(values: jax.Array, index: jax.Array) -> jax.Array:
    """values[row, index[row]] for each row."""
    return jnp.take_along_axis(values, index[:, None], axis=1)[:, 0]
