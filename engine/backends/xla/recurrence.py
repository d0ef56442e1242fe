"""A gated delta-net in portable XLA, token by token (Yang et al., "Gated Delta Networks", 2025)."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from cache.storage import KVPages
from engine.backends.base.norms import of_layer
from engine.backends.base.operands import GatedDelta
from engine.backends.base.token_layout import TokenLayout
from engine.backends.xla.token_loop import States, run_tokens

_EPSILON = 1e-6  # of the lengths of queries and keys


class _OfLayer(NamedTuple):
    """The weights of one layer."""

    convolution: jax.Array
    norm: jax.Array
    decay: jax.Array | None
    time_bias: jax.Array | None


def gated_delta(
    qkvz: jax.Array, beta: jax.Array, alpha: jax.Array, kv: KVPages, layer: jax.Array, layout: TokenLayout,
    constants: GatedDelta,
) -> tuple[jax.Array, KVPages]:  # fmt: skip
    """As `Recurrence`; padding tokens are neither read nor written."""
    weights = _OfLayer(
        of_layer(constants.convolution, layer),
        of_layer(constants.norm.weight, layer),
        *(None if stack is None else of_layer(stack, layer) for stack in (constants.decay, constants.time_bias)),
    )

    def token(at: jax.Array, states: States) -> tuple[jax.Array, States]:
        return _token(qkvz[at], beta[at], alpha[at], states, weights, constants)

    num_tokens = qkvz.shape[0]
    out = jnp.zeros((num_tokens, constants.value_size), qkvz.dtype)
    out, states = run_tokens(token, num_tokens, out, kv.states, layer, layout)
    return out, kv._replace(states=states)


def _token(
    qkvz: jax.Array, beta: jax.Array, alpha: jax.Array, states: States, weights: _OfLayer, constants: GatedDelta
) -> tuple[jax.Array, States]:
    """The output of one token, float32[value_size], and the states behind it."""
    before, matrices = states
    qkvz = qkvz.astype(jnp.float32)
    inputs = jnp.concatenate([before, qkvz[None, : constants.num_channels]])
    mixed = jax.nn.silu(sum(inputs[i] * weights.convolution[i] for i in range(len(inputs))))
    q, k, v = jnp.split(mixed, [constants.key_size, 2 * constants.key_size])
    q, k = (x.reshape(constants.num_key_heads, constants.key_dim) for x in (q, k))
    q, k = _unit(q) * constants.key_dim**-0.5, _unit(k)
    group = constants.num_heads // constants.num_key_heads
    spread = partial(jnp.tile, reps=(group, 1)) if constants.is_tiled else partial(jnp.repeat, repeats=group, axis=0)
    q, k, v = spread(q)[..., None], spread(k)[..., None], v.reshape(constants.num_heads, constants.value_dim)
    alpha = alpha.astype(jnp.float32)
    if weights.decay is None or weights.time_bias is None:
        matrices = matrices * jnp.exp(alpha).reshape(constants.num_heads, constants.key_dim, 1)
    else:
        decay = jnp.exp(weights.decay * jax.nn.softplus(alpha + weights.time_bias))
        matrices = matrices * decay[:, None, None]
    share = jax.nn.sigmoid(beta.astype(jnp.float32)) * constants.beta_scale
    change = (v - jnp.sum(matrices * k, axis=1)) * share[:, None]
    matrices = matrices + k * change[:, None]
    out = jnp.sum(matrices * q, axis=1)
    out = out * lax.rsqrt(jnp.mean(out * out, axis=-1, keepdims=True) + constants.norm.epsilon) * weights.norm
    gates = qkvz[constants.num_channels :].reshape(out.shape)
    gates = jax.nn.sigmoid(gates) if constants.has_sigmoid_gates else jax.nn.silu(gates)
    return (out * gates).reshape(-1), (inputs[1:], matrices)


def _unit(x: jax.Array) -> jax.Array:
    return x * lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + _EPSILON)
