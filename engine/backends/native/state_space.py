"""Short convolutions and selective state spaces by the native kernels, as functions of JAX arrays."""

import jax
import jax.numpy as jnp
import numpy as np

from cache.storage import KVPages
from engine.backends.base.operands import Convolution, StateSpace
from engine.backends.base.token_layout import TokenLayout
from engine.backends.native.library import target

_NOTHING = np.zeros(0, np.float32)  # in place of a norm or a bias


def convolution(
    x: jax.Array, kv: KVPages, layer: jax.Array, layout: TokenLayout, constants: Convolution
) -> tuple[jax.Array, KVPages]:
    """As `StateConvolution`; padding tokens are neither read nor written. The state is updated in place."""
    inputs = kv.states[0]
    out = jax.ShapeDtypeStruct((x.shape[0], constants.num_channels), jnp.float32)
    kept = jax.ShapeDtypeStruct(inputs.shape, inputs.dtype)
    call = jax.ffi.ffi_call(target("convolution"), (out, kept), input_output_aliases={5: 1})
    bias = _NOTHING if constants.bias is None else constants.bias
    made, inputs = call(
        x.astype(jnp.float32), layout.rows, layer, constants.weights, bias, inputs,
        num_tiles=layout.num_tiles, first=constants.first, has_silu=constants.has_silu,
    )  # fmt: skip
    return made.astype(x.dtype), kv._replace(states=(inputs, *kv.states[1:]))


def state_space(
    mixed: jax.Array, gates: jax.Array, time_steps: jax.Array, kv: KVPages, layer: jax.Array, layout: TokenLayout,
    constants: StateSpace,
) -> tuple[jax.Array, KVPages]:  # fmt: skip
    """As `StateSpaceScan`; padding tokens are neither read nor written. The state is updated in place."""
    inputs, matrices = kv.states
    norm = constants.norm
    out = jax.ShapeDtypeStruct((mixed.shape[0], constants.value_size), jnp.float32)
    kept = jax.ShapeDtypeStruct(matrices.shape, matrices.dtype)
    call = jax.ffi.ffi_call(target("state_space"), (out, kept), input_output_aliases={9: 1})
    least, most = constants.time_limits
    made, matrices = call(
        mixed.astype(jnp.float32), gates.astype(jnp.float32), time_steps.astype(jnp.float32), layout.rows, layer,
        constants.decay, constants.time_bias, constants.skip, _NOTHING if norm is None else norm.weight, matrices,
        num_tiles=layout.num_tiles, num_groups=constants.num_groups, first_gate=constants.first_gate,
        is_by_channel=constants.is_by_channel, norms_first=constants.norms_first,
        least_step=np.float32(least), most_step=np.float32(most),
        epsilon=np.float32(0.0 if norm is None else norm.epsilon),
    )  # fmt: skip
    return made.astype(mixed.dtype), kv._replace(states=(inputs, matrices))
