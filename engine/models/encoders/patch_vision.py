"""What encoders of pictures of any size share: patches in small squares, each of which becomes a token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from engine.models.encoders.layer_products import vector_leaf
from engine.models.encoders.vision_encoder import VisionEncoder
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf

BLOCK = 64  # tokens whose embeddings lie beside each other


@dataclass(frozen=True)
class PatchVision(VisionEncoder):
    """The patches of each small square lie beside each other; squares are in the order of rows."""

    prefix: str  # of the names of its tensors
    inner_size: int
    intermediate_size: int
    num_heads: int
    patch_size: int
    merge_size: int  # patches on a side of a square

    largest: ClassVar[tuple[int, ...]]  # tokens of the largest pictures of each bucket

    def buckets(self, max_model_len: int) -> tuple[int, ...]:
        """As `VisionEncoder.buckets`; a picture has fewer tokens than a sequence."""
        smaller = tuple(bucket for bucket in self.largest if bucket < max_model_len)
        return smaller if len(smaller) == len(self.largest) else (*smaller, max_model_len)

    def pixels_shape(self, bucket: int) -> tuple[int, ...]:
        return bucket * self.merge_size**2, self.patch_size, self.patch_size, 3

    def inner_shape(self, bucket: int) -> tuple[int, int]:
        return bucket * self.merge_size**2, self.inner_size

    @property
    def merged_size(self) -> int:
        """Features of a square."""
        return self.inner_size * self.merge_size**2

    def num_real(self, grid: jax.Array) -> jax.Array | None:
        """Those of the squares of the picture's rows and columns."""
        return grid[0] * grid[1] * self.merge_size**2

    def single(self, leaf: str, shape: tuple[int, ...], tensor: str) -> Leaf:
        """A vector's leaf outside the layers."""
        return vector_leaf(leaf, shape, self.prefix + tensor)

    @property
    def every_layer(self) -> tuple[int, ...]:
        return tuple(range(self.num_layers))

    def places(self, num_patches: int, grid: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The rows and the columns of patches; those behind the last one of the picture are beyond its rows."""
        merge = self.merge_size
        square, within = jnp.divmod(jnp.arange(num_patches), merge**2)
        row, column = jnp.divmod(square, grid[1])
        return row * merge + within // merge, column * merge + within % merge


def rotated(heads: jax.Array, angles: jax.Array) -> jax.Array:
    """[num_patches, num_heads, size], rotated by [num_patches, 1, size / 2] outside attention."""
    first, second = jnp.split(heads, 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def read_theta(vision: JsonFile, default: float) -> float:
    """The base of the rotation of patches; raises ModelError."""
    theta = vision.positive_number("rope_theta") or default
    table = vision.table("rope_parameters") or vision.table("rope_scaling")
    if table is None:
        return theta
    if table.text("rope_type") not in (None, "default", "axial"):
        raise table.error("rope_type", "the patches of pictures are rotated without scaling")
    return table.positive_number("rope_theta") or theta


def rms_norm(x: jax.Array, weight: jax.Array, epsilon: float) -> jax.Array:
    """Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019."""
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight
