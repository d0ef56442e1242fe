"""Products of activations with weights: native kernels for packed matrices, XLA for arrays.

A matrix of all layers is a PackedMatrix, or an array [num_layers, inputs, outputs] that products
apply from the right; an embedding is [vocab, hidden] as an array.
"""

from __future__ import annotations

from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from engine.kernels.native import products as native
from engine.kernels.native.kinds import Activation, NormKind
from engine.kernels.xla.attention import TokenLayout
from engine.weights.packing import PackedMatrix

Matrix: TypeAlias = jax.Array | PackedMatrix

_NOTHING = np.zeros(0, np.float32)  # in place of a bias


def embed(embedding: Matrix, tokens: jax.Array, layout: TokenLayout) -> jax.Array:
    """[num_tokens, hidden] of int32[num_tokens]."""
    if isinstance(embedding, PackedMatrix):
        return native.embed(tokens, layout.rows, embedding, num_tiles=layout.num_tiles)
    return embedding[tokens]


def norm_product(
    x: jax.Array, norms: jax.Array, weights: Matrix, layer: jax.Array, layout: TokenLayout, epsilon: float
) -> jax.Array:
    """The RMS norm of x, times a layer's weights.

    Args:
        x: [num_tokens, inputs].
        norms: [num_layers, inputs].
        layer: int32 scalar.
    """
    if isinstance(weights, PackedMatrix):
        return native.norm_product(
            x, layout.rows, layer, norms, _NOTHING, weights, _NOTHING, norm_kind=NormKind.RMS, epsilon=epsilon,
            activation=Activation.NONE, is_gated=False, num_tiles=layout.num_tiles,
        )  # fmt: skip
    return rms_norm(x, _of_layer(norms, layer), epsilon) @ _of_layer(weights, layer)


def gated_norm_product(
    x: jax.Array, norms: jax.Array, weights: Matrix, layer: jax.Array, layout: TokenLayout, epsilon: float
) -> jax.Array:
    """silu(gate) * up of a norm product (Shazeer, "GLU variants improve transformer", 2020).

    Args:
        weights: gate and up side by side; packed, their tiles alternate.
    """
    if isinstance(weights, PackedMatrix):
        return native.norm_product(
            x, layout.rows, layer, norms, _NOTHING, weights, _NOTHING, norm_kind=NormKind.RMS, epsilon=epsilon,
            activation=Activation.SILU, is_gated=True, num_tiles=layout.num_tiles,
        )  # fmt: skip
    gate, up = jnp.split(norm_product(x, norms, weights, layer, layout, epsilon), 2, axis=-1)
    return jax.nn.silu(gate) * up


def add_product(addend: jax.Array, x: jax.Array, weights: Matrix, layer: jax.Array, layout: TokenLayout) -> jax.Array:
    """The addend plus x times a layer's weights."""
    if isinstance(weights, PackedMatrix):
        return native.add_product(addend, x, layout.rows, layer, weights, _NOTHING, num_tiles=layout.num_tiles)
    return addend + x @ _of_layer(weights, layer)


def head_product(x: jax.Array, sampled: jax.Array, norm: jax.Array, weights: Matrix, epsilon: float) -> jax.Array:
    """Logits, float32[num_sampled_rows, vocab]: the normed tokens `sampled` of x, times each output's weights.

    Args:
        sampled: int32[num_sampled_rows]; negative in padding rows, whose logits are anything.
        norm: [inputs].
    """
    if isinstance(weights, PackedMatrix):
        return native.head_product(
            x, sampled, norm, _NOTHING, weights, norm_kind=NormKind.RMS, epsilon=epsilon, bias=_NOTHING
        )
    normed = rms_norm(x[sampled], norm, epsilon)
    return jnp.einsum("re,ve->rv", normed, weights, preferred_element_type=jnp.float32)


def rms_norm(x: jax.Array, weight: jax.Array, epsilon: float) -> jax.Array:
    """Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019; in float32 whatever x is."""
    wide = x.astype(jnp.float32)
    normed = wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + epsilon)
    return normed.astype(x.dtype) * weight


def _of_layer(stack: jax.Array, layer: jax.Array) -> jax.Array:
    """One layer's weights; XLA reads them where they lie."""
    of_layer: jax.Array = lax.dynamic_index_in_dim(stack, layer, keepdims=False)
    return of_layer
