"""Products of which each device computes its share."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from engine.backends.base.backend import Backends
from engine.backends.base.norms import biased
from engine.backends.base.operands import Activation, Clamp, ExpertBiases, LowRankPairs, Norm, Picks
from engine.backends.base.token_layout import TokenLayout
from engine.backends.xla.backend import BACKEND as XLA
from engine.backends.xla.products import XlaProducts
from engine.interface.config import EngineConfig
from engine.parallel.mesh import AXIS
from engine.parallel.split_weights import SplitLayout, SplitMatrix
from engine.weights.leaf import Split


class SplitProducts:
    """`Products` of what `SplitLayout` has made, inside a program that every device of a mesh runs.

    A product whose outputs are split takes replicated inputs, and gives each device its own outputs. One whose inputs
    are split takes those, and its results are added up over the devices, once in a half layer.
    """

    def __init__(self) -> None:
        self._local = XlaProducts()

    def embed(self, weights: SplitMatrix, tokens: jax.Array, layout: TokenLayout, *, scale: float = 1.0) -> jax.Array:
        """As `Products.embed`: each device looks up the tokens of its part of the vocabulary."""
        num_rows = weights.array.shape[0]
        place = tokens - lax.axis_index(AXIS) * num_rows
        rows = self._local.embed(weights.array, jnp.clip(place, 0, num_rows - 1), layout, scale=scale)
        is_own = (place >= 0) & (place < num_rows)
        return _sum(jnp.where(is_own[:, None], rows, 0))

    def norm(self, x: jax.Array, norm: Norm, layer: jax.Array, layout: TokenLayout) -> jax.Array:
        return self._local.norm(x, norm, layer, layout)

    def norm_product(
        self, x: jax.Array, norm: Norm | None, weights: SplitMatrix, layer: jax.Array, layout: TokenLayout, *,
        bias: jax.Array | None = None, activation: Activation = Activation.NONE, is_gated: bool = False,
        pairs: LowRankPairs | None = None,
    ) -> jax.Array:  # fmt: skip
        """As `Products.norm_product`; of split outputs each device has its own."""
        if weights.split is Split.INPUTS:
            return biased(self._summed(x, weights, layer, layout, pairs), bias, layer)
        return self._local.norm_product(
            x, norm, weights.array, layer, layout, bias=bias, activation=activation, is_gated=is_gated, pairs=pairs
        )

    def add_product(
        self, addend: jax.Array, x: jax.Array, weights: SplitMatrix, layer: jax.Array, layout: TokenLayout, *,
        bias: jax.Array | None = None, scale: float = 1.0, pairs: LowRankPairs | None = None,
    ) -> jax.Array:  # fmt: skip
        """As `Products.add_product`, of split inputs."""
        product = biased(self._summed(x, weights, layer, layout, pairs), bias, layer)
        return addend + (product if scale == 1.0 else product * scale)

    def add_experts(
        self, addend: jax.Array, x: jax.Array, gate_up: SplitMatrix, down: SplitMatrix, picks: Picks,
        layer: jax.Array, layout: TokenLayout, *, activation: Activation, is_gated: bool = True,
        clamp: Clamp | None = None, biases: ExpertBiases | None = None,
    ) -> jax.Array:  # fmt: skip
        """As `Products.add_experts`: each device computes the tokens routed to its own experts."""
        count = picks.num_experts // lax.axis_size(AXIS)
        place = picks.experts - lax.axis_index(AXIS) * count
        is_own = (place >= 0) & (place < count)
        own = Picks(jnp.where(is_own, place, count), picks.shares, count)  # an expert behind the last computes nothing
        added = self._local.add_experts(
            jnp.zeros_like(addend), x, gate_up.array, down.array, own, layer, layout,
            activation=activation, is_gated=is_gated, clamp=clamp, biases=biases,
        )  # fmt: skip
        return addend + _sum(added)

    def head_product(
        self, x: jax.Array, sampled: jax.Array, norm: Norm | None, weights: SplitMatrix, *,
        bias: jax.Array | None = None, scale: float = 1.0, softcap: float = 0.0,
    ) -> jax.Array:  # fmt: skip
        """As `Products.head_product`; each device computes its part of the vocabulary, and all get the whole."""
        own = self._local.head_product(x, sampled, norm, weights.array, bias=bias, scale=scale, softcap=softcap)
        logits: jax.Array = lax.all_gather(own, AXIS, axis=1, tiled=True)
        return logits[:, : weights.num_outputs]

    def _summed(
        self, x: jax.Array, weights: SplitMatrix, layer: jax.Array, layout: TokenLayout, pairs: LowRankPairs | None
    ) -> jax.Array:
        """Products of split inputs, and of pairs beside them, whose downs are split alike."""
        return _sum(self._local.norm_product(x, None, weights.array, layer, layout, pairs=pairs))


def _sum(x: jax.Array) -> jax.Array:
    """Over all devices."""
    total: jax.Array = lax.psum(x, AXIS)
    return total


def backends_on(mesh: Mesh, config: EngineConfig) -> Backends:
    """The backends of an engine on several devices, which are XLA's; raises ValueError if others are configured."""
    for name in ("matmul_backend", "attention_backend"):
        if getattr(config, name) not in ("auto", XLA.name):
            raise ValueError(
                f"{name} is {getattr(config, name)}, but tensor_parallel is {mesh.size}; several devices compute with "
                f"{XLA.name}"
            )
    if config.quantize is not None:
        raise ValueError(f"quantize is {config.quantize}, which several devices (tensor_parallel) cannot compute with")
    backend = dataclasses.replace(XLA, weights=SplitLayout(mesh), products=SplitProducts())
    return Backends(for_products=backend, for_attention=backend, detail=f"one model over {mesh.size} devices")
