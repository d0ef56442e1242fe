"""The recurrence of gated delta-nets by the native kernel, as a function of JAX arrays."""

from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from engine.backends.base.operands import GatedDelta
from engine.backends.native.library import target

Array: TypeAlias = jax.Array | np.ndarray

HEAD_MULTIPLE = 16  # the sizes of a head's keys and values are multiples of it
LARGEST_HEAD = 256  # features


def gated_delta(
    qkvz: Array, beta: Array, alpha: Array, rows: Array, layer: Array, states: tuple[jax.Array, ...],
    constants: GatedDelta, *, num_tiles: int,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:  # fmt: skip
    """The gated output of a delta-net, float32[num_tokens, value_size], and its states, updated in place.

    Args:
        qkvz: float32[num_tokens, num_channels + value_size].
        beta, alpha: float32[num_tokens, num_heads], as `Recurrence` takes them.
        rows: int32[num_rows, NUM_ROW_INTS] of a step, of which the last `num_tiles` are tiles.
        states: inputs float32[num_layers, entries, kernel - 1, channels] and matrices float32[num_layers, entries,
            num_heads, key_dim, value_dim].

    Raises ValueError where a size does not fit: heads have 16, 32, ... 256 features.
    """
    for name, size in (("key_dim", constants.key_dim), ("value_dim", constants.value_dim)):
        if size % HEAD_MULTIPLE != 0 or not 0 < size <= LARGEST_HEAD:
            raise ValueError(f"{name} is {size}; it is a multiple of {HEAD_MULTIPLE}, at most {LARGEST_HEAD}")
    out = jax.ShapeDtypeStruct((qkvz.shape[0], constants.value_size), jnp.float32)
    kept = [jax.ShapeDtypeStruct(state.shape, state.dtype) for state in states]
    call = jax.ffi.ffi_call(target("gated_delta"), (out, *kept), input_output_aliases={9: 1, 10: 2})
    unused = np.zeros((len(constants.convolution), constants.num_heads), np.float32)
    decay, time_bias = (unused if each is None else each for each in (constants.decay, constants.time_bias))
    made, inputs, matrices = call(
        qkvz, beta, alpha, rows, layer, constants.convolution, decay, time_bias, constants.norm.weight, *states,
        num_tiles=num_tiles, num_key_heads=constants.num_key_heads, is_tiled=constants.is_tiled,
        has_row_decays=constants.has_row_decays, has_sigmoid_gates=constants.has_sigmoid_gates,
        epsilon=np.float32(constants.norm.epsilon), beta_scale=np.float32(constants.beta_scale),
    )  # fmt: skip
    return made, (inputs, matrices)
