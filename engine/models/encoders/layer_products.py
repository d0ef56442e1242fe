"""What the layers of an encoder of pictures compute with, by the names of its leaves."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from engine.backends.base.backend import Backends
from engine.backends.base.operands import Activation, Norm, NormKind
from engine.backends.base.patches import Patches
from engine.weights.layout import Matrix, Params
from engine.weights.leaf import Leaf, LeafKind, Part, Stored

PREFIX = "vision."  # of the leaves' names
_GRAIN = 32  # inputs of a product, of which packed weights have a whole number


@dataclass(frozen=True)
class LayerProducts:
    """The products of some patches with the weights of one layer; of leaves outside the layers its index is 0."""

    params: Params
    index: jax.Array
    patches: Patches
    backends: Backends

    def of(self, leaf: str) -> jax.Array:
        """The values of a vector's leaf."""
        values: jax.Array = lax.dynamic_index_in_dim(self.params[PREFIX + leaf], self.index, keepdims=False)
        return values

    def norm(self, leaf: str, epsilon: float) -> Norm:
        """A norm in front of a product: a LayerNorm where the leaf has a bias, else an RMS norm."""
        bias = self._bias(leaf)
        kind = NormKind.RMS if bias is None else NormKind.LAYER
        return Norm(self.params[PREFIX + leaf], epsilon, kind, bias)

    def product(
        self, x: jax.Array, leaf: str, norm: Norm | None = None, activation: Activation = Activation.NONE,
        *, is_gated: bool = False,
    ) -> jax.Array:  # fmt: skip
        """activation(norm(x) @ weights + bias), the bias where the leaf has one; gated as `Products.norm_product`."""
        return self.backends.products.norm_product(
            x, norm, self._matrix(leaf), self.index, self.patches.layout,
            bias=self._bias(leaf), activation=activation, is_gated=is_gated,
        )  # fmt: skip

    def add_product(self, addend: jax.Array, x: jax.Array, leaf: str) -> jax.Array:
        """addend + x @ weights + bias; the addend may be overwritten."""
        return self.backends.products.add_product(
            addend, x, self._matrix(leaf), self.index, self.patches.layout, bias=self._bias(leaf)
        )

    def attend(
        self, qkv: jax.Array, num_heads: int, *, scale: float | None = None, angles: jax.Array | None = None
    ) -> jax.Array:
        """As `PatchAttention`; the scale is that of the size of heads, if not given."""
        size = qkv.shape[-1] // (3 * num_heads)
        return self.backends.patch_attention(
            qkv, self.patches, num_heads=num_heads, scale=size**-0.5 if scale is None else scale, angles=angles,
            is_exact=self.backends.is_exact,
        )  # fmt: skip

    def _matrix(self, leaf: str) -> Matrix:
        return self.params[PREFIX + leaf]

    def _bias(self, leaf: str) -> jax.Array | None:
        return self.params.get(f"{PREFIX}{leaf}_bias")


def outside_layers(params: Params, patches: Patches, backends: Backends) -> LayerProducts:
    """Products with leaves that are outside the layers."""
    return LayerProducts(params, jnp.int32(0), patches, backends)


def product_leaf(
    leaf: str, shape: tuple[int, int], *tensors: str, layers: tuple[int, ...] | None = None, is_gated: bool = False,
    pads_outputs: bool = False, pads_inputs: bool = False,
) -> Leaf:  # fmt: skip
    """The matrices of a product, joined along their outputs.

    Args:
        layers: that have it; None: it is outside the layers.
        pads_outputs: whether there are as many as `padded_size` says, which another product takes.
        pads_inputs: whether that is this one.
    """
    padded = padded_size(shape[0]) if pads_outputs else shape[0], padded_size(shape[1]) if pads_inputs else shape[1]
    parts = tuple(Part(shape, {"safetensors": Stored(each)}, padded) for each in tensors)
    kind = LeafKind.GATED if is_gated else LeafKind.MATRIX
    return Leaf(PREFIX + leaf, kind, parts, is_per_layer=layers is not None, layers=layers, is_of_pictures=True)


def vector_leaf(
    leaf: str, shape: tuple[int, ...], *tensors: str, layers: tuple[int, ...] | None = None, pads_outputs: bool = False
) -> Leaf:
    """Norms, biases and what XLA multiplies, in float32; as `product_leaf`."""
    padded = (padded_size(shape[0]), *shape[1:]) if pads_outputs else None
    parts = tuple(Part(shape, {"safetensors": Stored(each)}, padded) for each in tensors)
    return Leaf(PREFIX + leaf, LeafKind.VECTOR, parts, is_per_layer=layers is not None, layers=layers, is_exact=True)


def biased_leaves(
    leaf: str, shape: tuple[int, int], *names: str, layers: tuple[int, ...] | None = None, is_gated: bool = False,
    pads_outputs: bool = False, pads_inputs: bool = False,
) -> tuple[Leaf, Leaf]:  # fmt: skip
    """The matrices of a product and its biases."""
    weights, biases = ([f"{name}.{kind}" for name in names] for kind in ("weight", "bias"))
    return (
        product_leaf(
            leaf, shape, *weights, layers=layers, is_gated=is_gated, pads_outputs=pads_outputs, pads_inputs=pads_inputs
        ),
        vector_leaf(f"{leaf}_bias", shape[:1], *biases, layers=layers, pads_outputs=pads_outputs),
    )


def norm_leaves(leaf: str, size: int, name: str, layers: tuple[int, ...] | None = None) -> tuple[Leaf, Leaf]:
    """The weights and the biases of a LayerNorm."""
    return (
        vector_leaf(leaf, (size,), f"{name}.weight", layers=layers),
        vector_leaf(f"{leaf}_bias", (size,), f"{name}.bias", layers=layers),
    )


def padded_size(size: int) -> int:
    """The outputs of a product that another one takes, with the zeros behind them."""
    return -(-size // _GRAIN) * _GRAIN
