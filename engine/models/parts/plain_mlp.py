"""A feed-forward block without gates: two products, and an activation between them."""

from dataclasses import dataclass
from typing import ClassVar

import jax

from engine.backends.base.backend import Products
from engine.backends.base.operands import Activation, Norm
from engine.backends.base.token_layout import TokenLayout
from engine.models.parts.decoder import Decoder, Names, in_layers
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Split


@dataclass(frozen=True)
class PlainMlpDecoder(Decoder):
    """A decoder whose feed-forward blocks have no gates, with squared ReLU or the activation of its configuration."""

    up_names: ClassVar[Names] = ("mlp.up_proj", "ffn_up")
    down_names: ClassVar[Names] = ("mlp.down_proj", "ffn_down")
    squares_relu: ClassVar[bool] = False

    def feed_forward_leaves(self) -> list[Leaf]:
        config, hidden, inner = self.config, self.config.hidden_size, self.config.intermediate_size
        leaves = [
            Leaf("up", LeafKind.MATRIX, (in_layers((inner, hidden), self.up_names),), Split.OUTPUTS),
            Leaf("down", LeafKind.MATRIX, (in_layers((hidden, inner), self.down_names),), Split.INPUTS),
        ]
        if config.has_mlp_bias:
            up, down = (
                (in_layers((inner,), self.up_names, suffix="bias"),),
                (in_layers((hidden,), self.down_names, suffix="bias"),),
            )
            leaves.append(Leaf("up_bias", LeafKind.VECTOR, up, Split.OUTPUTS))
            leaves.append(Leaf("down_bias", LeafKind.VECTOR, down))
        return leaves

    def mixed(
        self, x: jax.Array, norm: Norm | None, params: Params, index: jax.Array, layout: TokenLayout,
        products: Products,
    ) -> jax.Array:  # fmt: skip
        activation = Activation.RELU_SQUARED if self.squares_relu else self.config.activation
        return products.norm_product(
            x, norm, params["up"], index, layout, bias=params.get("up_bias"), activation=activation
        )
