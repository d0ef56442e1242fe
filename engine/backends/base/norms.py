"""Norms outside a product, in XLA: of queries and keys, and after a block."""

import jax
import jax.numpy as jnp
from jax import lax

from engine.backends.base.operands import Norm, NormKind


def normed(x: jax.Array, norm: Norm | None, layer: jax.Array) -> jax.Array:
    """A layer's norm over the last axis, computed in float32, of the type of x; x as it is where the norm is None."""
    if norm is None:
        return x
    wide = x.astype(jnp.float32)
    if norm.kind is NormKind.LAYER:
        wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
    scaled = wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + norm.epsilon)
    weight = of_layer(norm.weight, layer).astype(x.dtype)  # it may be float32 beside bfloat16, as of ones
    return biased(scaled.astype(x.dtype) * weight, norm.bias, layer)


def biased(x: jax.Array, bias: jax.Array | None, layer: jax.Array) -> jax.Array:
    """x plus a layer's row of [num_layers, size], where there is a bias."""
    return x if bias is None else x + of_layer(bias, layer)


def of_layer(stack: jax.Array, layer: jax.Array) -> jax.Array:
    """One layer of [num_layers, …]."""
    of_layer: jax.Array = lax.dynamic_index_in_dim(stack, layer, keepdims=False)
    return of_layer
