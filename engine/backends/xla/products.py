"""Products of activations with arrays of weights, in XLA."""

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp

from engine.backends.base.norms import biased, normed, of_layer
from engine.backends.base.operands import Activation, Clamp, ExpertBiases, LowRankPairs, Norm, Picks
from engine.backends.base.token_layout import TokenLayout
from engine.backends.xla.experts import add_experts
from engine.backends.xla.low_rank import low_rank

_ACTIVATIONS: Mapping[Activation, Callable[[jax.Array], jax.Array]] = {
    Activation.SILU: jax.nn.silu,
    Activation.GELU_TANH: partial(jax.nn.gelu, approximate=True),
    Activation.GELU_ERF: partial(jax.nn.gelu, approximate=False),
    Activation.RELU: jax.nn.relu,
    Activation.RELU_SQUARED: lambda x: jnp.square(jax.nn.relu(x)),
    Activation.QUICK_GELU: lambda x: x * jax.nn.sigmoid(1.702 * x),
}


class XlaProducts:
    """`Products` of weights that `ArrayLayout` has made; padding tokens are computed like all others."""

    def embed(self, weights: jax.Array, tokens: jax.Array, layout: TokenLayout, *, scale: float = 1.0) -> jax.Array:
        return _scaled(weights[tokens], scale)

    def norm(self, x: jax.Array, norm: Norm, layer: jax.Array, layout: TokenLayout) -> jax.Array:
        return normed(x, norm, layer)

    def norm_product(
        self, x: jax.Array, norm: Norm | None, weights: jax.Array, layer: jax.Array, layout: TokenLayout, *,
        bias: jax.Array | None = None, activation: Activation = Activation.NONE, is_gated: bool = False,
        pairs: LowRankPairs | None = None,
    ) -> jax.Array:  # fmt: skip
        """As `Products.norm_product` (gated: Shazeer, "GLU variants improve transformer", 2020)."""
        rows = normed(x, norm, layer)
        product = biased(rows @ of_layer(weights, layer), bias, layer)
        if pairs is not None:
            product = product + low_rank(rows, pairs, layer, layout)
        return _finished(product, activation, is_gated)

    def add_product(
        self, addend: jax.Array, x: jax.Array, weights: jax.Array, layer: jax.Array, layout: TokenLayout, *,
        bias: jax.Array | None = None, scale: float = 1.0, pairs: LowRankPairs | None = None,
    ) -> jax.Array:  # fmt: skip
        product = self.norm_product(x, None, weights, layer, layout, bias=bias, pairs=pairs)
        return addend + _scaled(product, scale)

    def add_experts(
        self, addend: jax.Array, x: jax.Array, gate_up: jax.Array, down: jax.Array, picks: Picks, layer: jax.Array,
        layout: TokenLayout, *, activation: Activation, is_gated: bool = True, clamp: Clamp | None = None,
        biases: ExpertBiases | None = None,
    ) -> jax.Array:  # fmt: skip
        if clamp is None:
            finished = partial(_finished, activation=activation, is_gated=is_gated)
        else:
            finished = partial(_clamped, clamp=clamp)
        return add_experts(addend, x, gate_up, down, picks, layer, layout, finished, biases)

    def head_product(
        self, x: jax.Array, sampled: jax.Array, norm: Norm | None, weights: jax.Array, *,
        bias: jax.Array | None = None, scale: float = 1.0, softcap: float = 0.0,
    ) -> jax.Array:  # fmt: skip
        only = jnp.int32(0)
        rows = normed(x[sampled], norm, only)
        product = jnp.einsum("re,ve->rv", rows, weights, preferred_element_type=jnp.float32)
        logits = _scaled(biased(product, bias, only), scale)
        return softcap * jnp.tanh(logits / softcap) if softcap else logits


def _scaled(x: jax.Array, scale: float) -> jax.Array:
    return x if scale == 1.0 else x * scale


def _finished(product: jax.Array, activation: Activation, is_gated: bool) -> jax.Array:
    """The outputs from the sums of a product, gates and then ups where it is gated."""
    if not is_gated:
        return _activated(product, activation)
    gate, up = jnp.split(product, 2, axis=-1)
    return _activated(gate, activation) * up


def _activated(x: jax.Array, activation: Activation) -> jax.Array:
    return x if activation is Activation.NONE else _ACTIVATIONS[activation](x)


def _clamped(product: jax.Array, clamp: Clamp) -> jax.Array:
    """The result of a gated product with a clamp, of its gates and then its ups."""
    gate, up = jnp.split(product, 2, axis=-1)
    if clamp.alpha is None:
        return jnp.minimum(jax.nn.silu(gate), clamp.limit) * jnp.clip(up, -clamp.limit, clamp.limit)
    gate = jnp.minimum(gate, clamp.limit)
    return (jnp.clip(up, -clamp.limit, clamp.limit) + 1) * gate * jax.nn.sigmoid(clamp.alpha * gate)
