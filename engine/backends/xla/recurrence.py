"""A gated delta-net in portable XLA, token by token (Yang et al., "Gated Delta Networks", 2025).

One function computes a token, of one size in every program, so that a token has the same bits in any step.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from cache.storage import KVPages
from engine.backends.base.norms import of_layer
from engine.backends.base.operands import GatedDelta
from engine.backends.base.token_layout import LOAD, NUM_TOKENS, SAVE, SAVE_END, SLOT, START, TokenLayout

_EPSILON = 1e-6  # of the lengths of queries and keys


class _State(NamedTuple):
    """Of one sequence in one layer."""

    inputs: jax.Array  # float32[kernel - 1, channels], the last ones of the convolution
    matrices: jax.Array  # float32[num_heads, key_dim, value_dim]


class _OfLayer(NamedTuple):
    """The weights of one layer."""

    convolution: jax.Array
    decay: jax.Array
    time_bias: jax.Array
    norm: jax.Array


def gated_delta(
    qkvz: jax.Array, beta: jax.Array, alpha: jax.Array, kv: KVPages, layer: jax.Array, layout: TokenLayout,
    constants: GatedDelta,
) -> tuple[jax.Array, KVPages]:  # fmt: skip
    """As `Recurrence`; padding tokens are neither read nor written."""
    rows, num_decode = layout.rows, layout.num_decode_rows
    tile_size = (qkvz.shape[0] - num_decode) // layout.num_tiles if layout.num_tiles else 1
    weights = _OfLayer(
        *(
            of_layer(stack, layer)
            for stack in (constants.convolution, constants.decay, constants.time_bias, constants.norm.weight)
        )
    )
    is_padding = rows[:, NUM_TOKENS] == 0
    real_rows = jnp.argsort(is_padding)  # is stable: the tiles of a prompt stay in order

    def of_row(index: jax.Array, carry: tuple[jax.Array, _State]) -> tuple[jax.Array, _State]:
        out, stacks = carry
        row = real_rows[index]
        columns = rows[row]
        start, count, slot, saved = (columns[column] for column in (START, NUM_TOKENS, SLOT, SAVE))
        first_token = jnp.where(row < num_decode, row, num_decode + (row - num_decode) * tile_size)
        source = jnp.where(columns[LOAD] > 0, columns[LOAD], slot)
        # What an earlier request left may be anything: 0 times a NaN is a NaN.
        state = _State(*(jnp.where(start == 0, 0, stack[layer, source]) for stack in stacks))

        def token(offset: jax.Array, carry: tuple[jax.Array, _State]) -> tuple[jax.Array, _State]:
            out, state = carry
            at = first_token + offset
            made, state = _token(qkvz[at], beta[at], alpha[at], state, weights, constants)
            return out.at[at].set(made.astype(out.dtype)), state

        middle = jnp.where(saved > 0, columns[SAVE_END] - start, count)
        out, state = lax.fori_loop(0, middle, token, (out, state))
        stacks = _written(stacks, layer, jnp.where(saved > 0, saved, slot), state)
        out, state = lax.fori_loop(middle, count, token, (out, state))
        return out, _written(stacks, layer, slot, state)

    out = jnp.zeros((qkvz.shape[0], constants.value_size), qkvz.dtype)
    num_real = jnp.sum(jnp.logical_not(is_padding))
    out, states = lax.fori_loop(0, num_real, of_row, (out, _State(*kv.states)))
    return out, kv._replace(states=tuple(states))


def _written(stacks: _State, layer: jax.Array, entry: jax.Array, state: _State) -> _State:
    return _State(*(stack.at[layer, entry].set(part) for stack, part in zip(stacks, state, strict=True)))


def _token(
    qkvz: jax.Array, beta: jax.Array, alpha: jax.Array, state: _State, weights: _OfLayer, constants: GatedDelta
) -> tuple[jax.Array, _State]:
    """The output of one token, float32[value_size], and the state behind it."""
    qkvz = qkvz.astype(jnp.float32)
    inputs = jnp.concatenate([state.inputs, qkvz[None, : constants.num_channels]])
    mixed = jax.nn.silu(sum(inputs[i] * weights.convolution[i] for i in range(len(inputs))))
    q, k, v = jnp.split(mixed, [constants.key_size, 2 * constants.key_size])
    q, k = (x.reshape(constants.num_key_heads, constants.key_dim) for x in (q, k))
    q, k = _unit(q) * constants.key_dim**-0.5, _unit(k)
    group = constants.num_heads // constants.num_key_heads
    spread = partial(jnp.tile, reps=(group, 1)) if constants.is_tiled else partial(jnp.repeat, repeats=group, axis=0)
    q, k, v = spread(q)[..., None], spread(k)[..., None], v.reshape(constants.num_heads, constants.value_dim)
    decay = jnp.exp(weights.decay * jax.nn.softplus(alpha.astype(jnp.float32) + weights.time_bias))
    matrices = state.matrices * decay[:, None, None]
    change = (v - jnp.sum(matrices * k, axis=1)) * jax.nn.sigmoid(beta.astype(jnp.float32))[:, None]
    matrices = matrices + k * change[:, None]
    out = jnp.sum(matrices * q, axis=1)
    out = out * lax.rsqrt(jnp.mean(out * out, axis=-1, keepdims=True) + constants.norm.epsilon) * weights.norm
    gates = qkvz[constants.num_channels :].reshape(out.shape)
    return (out * jax.nn.silu(gates)).reshape(-1), _State(inputs[1:], matrices)


def _unit(x: jax.Array) -> jax.Array:
    return x * lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + _EPSILON)
