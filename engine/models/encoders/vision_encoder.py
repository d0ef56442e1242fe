"""The interface of an encoder of pictures."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import jax

from engine.weights.layout import Params
from engine.weights.leaf import Leaf


@dataclass(frozen=True)
class VisionEncoder(ABC):
    """Makes embeddings of a picture, in pieces: what is before its layers, each layer, and what is behind them."""

    height: int  # pixels of every picture
    width: int
    num_tokens: int  # positions of a prompt that a picture fills
    num_layers: int
    hidden_size: int  # of the text model
    sees_both_ways: bool  # whether the text model lets the tokens of a picture attend to each other in both directions

    @property
    @abstractmethod
    def inner_shape(self) -> tuple[int, int]:
        """Of what goes through the layers: patches and their features."""

    @abstractmethod
    def leaves(self) -> tuple[Leaf, ...]:
        """Its parameters, which are among those of the text model."""

    @abstractmethod
    def begin(self, params: Params, pixels: jax.Array) -> jax.Array:
        """float32 of `inner_shape`, from uint8[height, width, 3]."""

    @abstractmethod
    def layer(self, params: Params, x: jax.Array, index: jax.Array) -> jax.Array:
        """One layer, by its index, an int32 scalar."""

    @abstractmethod
    def end(self, params: Params, x: jax.Array) -> jax.Array:
        """Embeddings, float32[num_tokens, hidden]."""
