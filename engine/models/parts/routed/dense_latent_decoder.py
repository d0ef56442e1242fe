"""The family of decoders with latent attention and feed-forward blocks without experts."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax

from engine.backends.base.backend import Products
from engine.backends.base.token_layout import TokenLayout
from engine.models.parts.decoder import Decoder, FeedForward
from engine.models.parts.routed.latent_decoder import LatentDecoder
from engine.weights.layout import Params
from engine.weights.leaf import Leaf


@dataclass(frozen=True)
class DenseLatentDecoder(LatentDecoder):
    """All layers are of one kind; of a mixture's configuration, nothing about experts counts."""

    def feed_forward_leaves(self) -> list[Leaf]:
        return Decoder.feed_forward_leaves(self)

    def runs(self) -> Sequence[tuple[range, FeedForward]]:
        return Decoder.runs(self)

    def feed_forward(
        self, x: jax.Array, params: Params, index: jax.Array, layout: TokenLayout, products: Products,
        num_others: int | jax.Array = 0,
    ) -> jax.Array:  # fmt: skip
        return Decoder.feed_forward(self, x, params, index, layout, products)
