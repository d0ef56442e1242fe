"""Products of weights beside which adapters have low-rank pairs, by the products of any backend."""

import dataclasses
from typing import NamedTuple

import jax

from engine.backends.base.backend import Backends, Products
from engine.backends.base.operands import Activation, Clamp, ExpertBiases, LowRankPairs, Norm, Picks
from engine.backends.base.token_layout import TokenLayout
from engine.weights.layout import Matrix


class AdaptedMatrix(NamedTuple):
    """A leaf and the pairs of all adapters in memory."""

    base: Matrix
    pairs: LowRankPairs


class AdaptedProducts:
    """`Products` of leaves with and without pairs. Rows without an adapter get the bits that they get without pairs."""

    def __init__(self, products: Products) -> None:
        self._products = products

    def embed(self, weights: Matrix, tokens: jax.Array, layout: TokenLayout, *, scale: float = 1.0) -> jax.Array:
        return self._products.embed(weights, tokens, layout, scale=scale)

    def norm(self, x: jax.Array, norm: Norm, layer: jax.Array, layout: TokenLayout) -> jax.Array:
        return self._products.norm(x, norm, layer, layout)

    def norm_product(
        self, x: jax.Array, norm: Norm | None, weights: Matrix, layer: jax.Array, layout: TokenLayout, *,
        bias: jax.Array | None = None, activation: Activation = Activation.NONE, is_gated: bool = False,
        pairs: LowRankPairs | None = None,
    ) -> jax.Array:  # fmt: skip
        if isinstance(weights, AdaptedMatrix):
            weights, pairs = weights
        return self._products.norm_product(
            x, norm, weights, layer, layout, bias=bias, activation=activation, is_gated=is_gated, pairs=pairs
        )

    def add_product(
        self, addend: jax.Array, x: jax.Array, weights: Matrix, layer: jax.Array, layout: TokenLayout, *,
        bias: jax.Array | None = None, scale: float = 1.0, pairs: LowRankPairs | None = None,
    ) -> jax.Array:  # fmt: skip
        if isinstance(weights, AdaptedMatrix):
            weights, pairs = weights
        return self._products.add_product(addend, x, weights, layer, layout, bias=bias, scale=scale, pairs=pairs)

    def add_experts(
        self, addend: jax.Array, x: jax.Array, gate_up: Matrix, down: Matrix, picks: Picks, layer: jax.Array,
        layout: TokenLayout, *, activation: Activation, is_gated: bool = True, clamp: Clamp | None = None,
        biases: ExpertBiases | None = None,
    ) -> jax.Array:  # fmt: skip
        return self._products.add_experts(
            addend, x, gate_up, down, picks, layer, layout,
            activation=activation, is_gated=is_gated, clamp=clamp, biases=biases,
        )  # fmt: skip

    def head_product(
        self, x: jax.Array, sampled: jax.Array, norm: Norm | None, weights: Matrix, *,
        bias: jax.Array | None = None, scale: float = 1.0, softcap: float = 0.0,
    ) -> jax.Array:  # fmt: skip
        return self._products.head_product(x, sampled, norm, weights, bias=bias, scale=scale, softcap=softcap)


def with_adapters(backends: Backends) -> Backends:
    """The same backends, whose products also take `AdaptedMatrix`."""
    of_products = backends.for_products
    products = AdaptedProducts(of_products.products)
    return dataclasses.replace(backends, for_products=dataclasses.replace(of_products, products=products))
