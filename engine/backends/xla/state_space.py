"""Short convolutions and selective state spaces in portable XLA, token by token."""

import jax
import jax.numpy as jnp
from jax import lax

from cache.storage import KVPages
from engine.backends.base.norms import of_layer
from engine.backends.base.operands import Convolution, StateSpace
from engine.backends.base.token_layout import TokenLayout
from engine.backends.xla.token_loop import States, run_tokens


def convolution(
    x: jax.Array, kv: KVPages, layer: jax.Array, layout: TokenLayout, constants: Convolution
) -> tuple[jax.Array, KVPages]:
    """As `StateConvolution`; padding tokens are neither read nor written."""
    weights = of_layer(constants.weights, layer)
    bias = None if constants.bias is None else of_layer(constants.bias, layer)
    channels = slice(constants.first, constants.first + constants.num_channels)

    def token(at: jax.Array, states: States) -> tuple[jax.Array, States]:
        inputs = jnp.concatenate([states[0], x[at, channels].astype(jnp.float32)[None]])
        mixed = sum((inputs[i] * weights[i] for i in range(1, len(inputs))), inputs[0] * weights[0])
        mixed = mixed if bias is None else mixed + bias
        return jax.nn.silu(mixed) if constants.has_silu else mixed, (inputs[1:],)

    out = jnp.zeros((x.shape[0], constants.num_channels), x.dtype)
    out, states = run_tokens(token, x.shape[0], out, kv.states[:1], layer, layout)
    return out, kv._replace(states=(*states, *kv.states[1:]))


def state_space(
    mixed: jax.Array, gates: jax.Array, time_steps: jax.Array, kv: KVPages, layer: jax.Array, layout: TokenLayout,
    constants: StateSpace,
) -> tuple[jax.Array, KVPages]:  # fmt: skip
    """As `StateSpaceScan`; padding tokens are neither read nor written."""
    of_heads = (constants.num_heads, constants.head_dim)
    decay, time_bias, skip = (of_layer(each, layer) for each in (constants.decay, constants.time_bias, constants.skip))
    if constants.is_by_channel:
        decay = jnp.moveaxis(decay.reshape(constants.state_size, *of_heads), 0, 1)
        time_bias, skip = time_bias.reshape(of_heads), skip.reshape(of_heads)
    else:
        decay, time_bias, skip = decay[:, None, None], time_bias[:, None], skip[:, None]
    channels = slice(constants.first_gate, constants.first_gate + constants.value_size)

    def token(at: jax.Array, states: States) -> tuple[jax.Array, States]:
        values, b, c = jnp.split(
            mixed[at].astype(jnp.float32),
            [constants.value_size, constants.value_size + constants.num_groups * constants.state_size],
        )
        values = values.reshape(of_heads)
        shared = constants.num_heads // constants.num_groups
        b, c = (jnp.repeat(x.reshape(constants.num_groups, -1), shared, axis=0)[:, :, None] for x in (b, c))
        step = time_steps[at].astype(jnp.float32).reshape(constants.num_heads, -1) + time_bias
        step = jnp.clip(jax.nn.softplus(step), *constants.time_limits)
        [matrices] = states
        matrices = matrices * jnp.exp(step[:, None] * decay) + b * (values * step)[:, None]
        made = jnp.sum(matrices * c, axis=1) + values * skip
        return _gated(made, gates[at, channels].astype(jnp.float32), layer, constants), (matrices,)

    out = jnp.zeros((mixed.shape[0], constants.value_size), mixed.dtype)
    out, states = run_tokens(token, mixed.shape[0], out, kv.states[1:2], layer, layout)
    return out, kv._replace(states=(kv.states[0], *states))


def _gated(made: jax.Array, gates: jax.Array, layer: jax.Array, constants: StateSpace) -> jax.Array:
    """The output of a token, normed and gated, float32[value_size]."""
    made, norm = made.reshape(-1), constants.norm
    if norm is None:
        return made * jax.nn.silu(gates)
    if not constants.norms_first:
        made = made * jax.nn.silu(gates)
    groups = made.reshape(constants.num_groups, -1)
    groups = groups * lax.rsqrt(jnp.mean(groups * groups, axis=-1, keepdims=True) + norm.epsilon)
    made = groups.reshape(-1) * of_layer(norm.weight, layer)
    return made * jax.nn.silu(gates) if constants.norms_first else made
