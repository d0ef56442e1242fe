"""The interface of an encoder of pictures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from engine.backends.base.backend import Backends
from engine.backends.base.patches import patches
from engine.models.encoders.layer_products import LayerProducts, outside_layers
from engine.weights.formats.fields import Fields
from engine.weights.formats.image_processor import DEVIATION, MEAN
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind

MAX_SIZE = 1 << 16  # of each size that a configuration states
NUM_END_FEATURES = 2  # a number as two digits, which are exact as bfloat16
END_BASE = 256
_MOST_COLOUR = 255


class Colours(NamedTuple):
    """The mean and the deviation of colours between 0 and 1."""

    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    deviation: tuple[float, ...] = (0.5, 0.5, 0.5)

    @classmethod
    def read(cls, config: Fields, usual: Colours) -> Colours:
        """Those of the image processor, which whoever opens a model puts beside its configuration."""
        mean, deviation = config.value(MEAN), config.value(DEVIATION)
        return cls(
            usual.mean if mean is None else tuple(mean),
            usual.deviation if deviation is None else tuple(deviation),
        )

    def normalized(self, pixels: jax.Array) -> jax.Array:
        """float32 of uint8, whose last axis is that of colours."""
        mean, deviation = (np.array(each, np.float32) for each in self)
        return ((pixels.astype(jnp.float32) / _MOST_COLOUR) - mean) / deviation


@dataclass(frozen=True)
class VisionEncoder(ABC):
    """Makes embeddings of a picture, in pieces: what is before its layers, each layer, and what is behind them.

    Programs are compiled for pictures of up to so many tokens as each bucket says. `grid`, int32[2], is the rows and
    the columns of a picture's tokens, which matters where pictures have any size.
    """

    height: int  # pixels of every picture; 0: pictures have any size
    width: int
    num_tokens: int  # positions of a prompt that a picture fills; of any size: whose embeddings lie beside each other
    num_layers: int
    hidden_size: int  # of the text model
    sees_both_ways: bool  # whether the text model lets the tokens of a picture attend to each other in both directions
    colours: Colours = field(default=Colours(), kw_only=True)

    is_tiled: ClassVar[bool] = False  # whether the first axis of pixels is that of tiles, of which pictures have some
    uses_mrope: ClassVar[bool] = False  # whether the text model rotates tokens of pictures by their rows and columns

    @property
    def num_deep(self) -> int:
        """Layers of the text model, the first ones, behind which it adds more of a picture (deep stack)."""
        return 0

    @property
    def num_features(self) -> int:
        """Of a token: its embedding, what is added behind each of these layers, and how far the picture's end is."""
        return self.hidden_size * (1 + self.num_deep) + (NUM_END_FEATURES if self.stores_ends else 0)

    @property
    def stores_ends(self) -> bool:
        """Whether beside each token's embedding stands how many tokens of its picture are behind it."""
        return self.sees_both_ways and not self.height

    @property
    def num_frames_a_patch(self) -> int:
        """Pictures of a video that each patch covers, in the second axis of its pixels; 0: there is no such axis."""
        return 0

    def buckets(self, max_model_len: int) -> tuple[int, ...]:
        """Tokens of the largest pictures that each group of programs takes, ascending."""
        return (self.num_tokens,)

    def pixels_shape(self, bucket: int) -> tuple[int, ...]:
        """Of the colours of a picture, uint8."""
        return self.height, self.width, 3

    @abstractmethod
    def inner_shape(self, bucket: int) -> tuple[int, int]:
        """Of what goes through the layers: patches and their features."""

    def embeddings_shape(self, bucket: int) -> tuple[int, int]:
        """Of what `end` makes."""
        return bucket, self.num_features - (NUM_END_FEATURES if self.stores_ends else 0)

    @abstractmethod
    def leaves(self) -> tuple[Leaf, ...]:
        """Its parameters, which are among those of the text model."""

    @property
    def product_inputs(self) -> dict[str, int]:
        """The inputs of its products by the leaves of these, with what pads them."""
        return {
            leaf.name: (part.padded_shape or part.shape)[1]
            for leaf in self.leaves()
            if leaf.kind is not LeafKind.VECTOR
            for part in leaf.parts
        }

    @abstractmethod
    def begin(self, params: Params, pixels: jax.Array, grid: jax.Array) -> jax.Array:
        """float32 of `inner_shape`, from uint8 of `pixels_shape`."""

    @abstractmethod
    def layer(self, x: jax.Array, grid: jax.Array, products: LayerProducts) -> jax.Array:
        """One layer; patches that are not real get any values."""

    @abstractmethod
    def end(self, x: jax.Array, grid: jax.Array, products: LayerProducts) -> jax.Array:
        """Embeddings, float32[bucket, num_features], without the distance to the picture's end."""

    def num_real(self, grid: jax.Array) -> jax.Array | None:
        """Patches of a picture, which are the first ones; None: it fills the bucket."""
        return None

    def run_layer(
        self, params: Params, x: jax.Array, grid: jax.Array, index: jax.Array, *, backends: Backends
    ) -> jax.Array:
        """One layer, by its index, an int32 scalar."""
        products = LayerProducts(params, index, patches(len(x), self.num_real(grid)), backends)
        return self.layer(x, grid, products)

    def run_end(self, params: Params, x: jax.Array, grid: jax.Array, *, backends: Backends) -> jax.Array:
        """What is behind the layers, as `end`."""
        return self.end(x, grid, outside_layers(params, patches(len(x), self.num_real(grid)), backends))
