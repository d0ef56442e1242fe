"""Keys without what all keys of a head have in common, which rounding to int8 would take bits for.

A softmax does not change when all its scores change by one number, so a vector may be taken from all keys of a head (as
"smooth K" of Zhang et al., "SageAttention", 2024, takes their mean). Biases of keys, which are far larger than the rest
in some models (Qwen2's), are nearly such a vector where the rotation by position is slow.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from engine.backends.base.norms import of_layer
from engine.backends.base.operands import AttentionConstants
from engine.models.parts.rotary import Rotary, rotated

_NUM_POSITIONS = 1024  # over which rotated biases are averaged: those that turn often within so many become nothing


def has_common_bias(constants: AttentionConstants) -> bool:
    """Whether biases are part of keys as they are, and scores that all change alike change nothing."""
    return constants.k_norm is None and constants.sinks is None and not constants.softcap


def without_common_bias(
    qkv: jax.Array, biases: jax.Array, num_kv_heads: int, index: jax.Array, constants: AttentionConstants,
    rotary: Sequence[Rotary],
) -> jax.Array:  # fmt: skip
    """Takes from the keys of a layer what makes each rotated key less by the mean of its head's rotated biases.

    Args:
        qkv: [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], not yet rotated.
        biases: [num_layers, the same features], which are part of `qkv`.
        rotary: the tables of `constants.rotations`.
    """
    head_dim = qkv.shape[1] // (constants.num_heads + 2 * num_kv_heads)
    start, end = constants.num_heads * head_dim, (constants.num_heads + num_kv_heads) * head_dim
    bias = of_layer(biases, index)[start:end].astype(jnp.float32).reshape(1, num_kv_heads, head_dim)
    common = jnp.broadcast_to(bias, (len(qkv), num_kv_heads, head_dim))
    if rotary:
        table = jnp.asarray(constants.tables)[index]
        means, rotations = jnp.asarray(_mean_rotations(rotary)), constants.rotations * _backwards(constants.rotations)
        mean = jnp.broadcast_to(rotated(bias, means[table][None]), common.shape)
        common = jnp.where(table < 0, common, rotated(mean, rotations[table]))
    # Rounded once, when it is small.
    keys = (qkv[:, start:end].astype(jnp.float32) - common.reshape(len(qkv), -1)).astype(qkv.dtype)
    less: jax.Array = lax.dynamic_update_slice_in_dim(qkv, keys, start, axis=1)  # in place, unlike a scatter
    return less


def _backwards(rotations: jax.Array) -> np.ndarray:
    """The signs by which cosines and then sines, [..., rotary_dim], become those of the opposite angles."""
    return np.repeat(np.array([1, -1], np.float32), rotations.shape[-1] // 2)


def _mean_rotations(tables: Sequence[Rotary]) -> np.ndarray:
    """The mean cosines and sines over the first positions, divided by the magnitude that rotating twice adds."""
    made = []
    for table in tables:
        angles = np.arange(_NUM_POSITIONS)[:, None] * np.asarray(table.frequencies, np.float64)
        made.append(np.concatenate([np.cos(angles), np.sin(angles)], axis=1).mean(axis=0) / table.magnitude)
    return np.array(made, np.float32)
