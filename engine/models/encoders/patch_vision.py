"""What encoders of pictures of any size share: patches in small squares, each of which becomes a token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from engine.models.encoders.vision_encoder import VisionEncoder
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Stored

PREFIX = "vision."  # of the leaves' names
BLOCK = 64  # tokens whose embeddings lie beside each other
_QUERIES_AT_ONCE = 256
_UNSEEN = -1e30

OfLayer = Callable[[str], jax.Array]  # from a leaf's name to its values in a layer


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

    def single(self, leaf: str, shape: tuple[int, ...], tensor: str) -> Leaf:
        """A tensor outside the layers."""
        return single_leaf(leaf, shape, self.prefix + tensor)

    def layered(
        self, leaf: str, shape: tuple[int, ...], *tensors: str, where: str = "blocks", number: int | None = None
    ) -> Leaf:
        """Tensors of each layer, or of so many entries of another list."""
        parts = tuple(
            Part(shape, {"safetensors": Stored(f"{self.prefix}{where}.{{layer}}.{each}")}) for each in tensors
        )
        layers = tuple(range(self.num_layers if number is None else number))
        return Leaf(PREFIX + leaf, LeafKind.VECTOR, parts, layers=layers, is_exact=True)

    def places(self, num_patches: int, grid: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The rows and the columns of patches; those behind the last one of the picture are beyond its rows."""
        merge = self.merge_size
        square, within = jnp.divmod(jnp.arange(num_patches), merge**2)
        row, column = jnp.divmod(square, grid[1])
        return row * merge + within // merge, column * merge + within % merge


def attend(
    q: jax.Array, k: jax.Array, v: jax.Array, is_real: jax.Array | None = None, window: jax.Array | None = None,
    is_full: jax.Array | None = None,
) -> jax.Array:  # fmt: skip
    """Attention of patches, [num_patches, num_heads, size], to those of their window; [num_patches, inner].

    Args:
        q: scaled.
        is_real: bool[num_patches], whether a patch may be seen; None: all may.
        window: int32[num_patches]; None: there is one.
        is_full: a bool, whether each patch sees all.
    """
    num_patches, num_heads, _ = q.shape
    keys, values = k.transpose(1, 2, 0), v.transpose(1, 0, 2)
    # Some queries at a time, because the scores of all would be large.
    width = min(num_patches, _QUERIES_AT_ONCE)
    num_blocks = -(-num_patches // width)
    padding = num_blocks * width - num_patches
    blocks = jnp.pad(q, ((0, padding), (0, 0), (0, 0))).reshape(num_blocks, width, *q.shape[1:])
    windows = None if window is None else jnp.pad(window, (0, padding)).reshape(num_blocks, width)
    # XLA multiplies two matrices on a CPU three times as fast as one pair for each head.
    heads_at_once = 1 if jax.default_backend() == "cpu" else num_heads

    def attend_block(block: tuple[jax.Array, jax.Array | None]) -> jax.Array:
        queries, its_windows = block
        sees = is_real
        if its_windows is not None and window is not None:
            in_window = its_windows[:, None] == window[None]
            in_window = in_window if is_full is None else in_window | is_full
            sees = in_window if is_real is None else in_window & is_real

        def attend_head(head: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
            its_queries, its_keys, its_values = head
            scores = its_queries @ its_keys
            if sees is not None:  # a padding query may see nothing; a finite number keeps its weights finite
                scores = jnp.where(sees, scores, _UNSEEN)
            return jax.nn.softmax(scores, axis=-1) @ its_values

        made: jax.Array = lax.map(attend_head, (queries.transpose(1, 0, 2), keys, values), batch_size=heads_at_once)
        return made.transpose(1, 0, 2)

    made: jax.Array = lax.map(attend_block, (blocks, windows))
    return made.reshape(num_blocks * width, -1)[:num_patches]


def rotated(heads: jax.Array, angles: jax.Array) -> jax.Array:
    """[num_patches, num_heads, size], rotated by [num_patches, 1, size / 2]."""
    first, second = jnp.split(heads, 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def single_leaf(leaf: str, shape: tuple[int, ...], tensor: str) -> Leaf:
    """A tensor outside the layers, in float32."""
    part = Part(shape, {"safetensors": Stored(tensor)})
    return Leaf(PREFIX + leaf, LeafKind.VECTOR, (part,), is_per_layer=False, is_exact=True)


def single_leaves(leaf: str, shape: tuple[int, ...], name: str) -> tuple[Leaf, Leaf]:
    """Weights outside the layers, and their biases."""
    return single_leaf(leaf, shape, f"{name}.weight"), single_leaf(f"{leaf}_bias", shape[:1], f"{name}.bias")


def of_layer(params: Params, index: jax.Array) -> OfLayer:
    """The leaves of an encoder in one of its layers."""

    def of(name: str) -> jax.Array:
        leaf: jax.Array = lax.dynamic_index_in_dim(params[PREFIX + name], index, keepdims=False)
        return leaf

    return of


def rms_norm(x: jax.Array, weight: jax.Array, epsilon: float) -> jax.Array:
    """Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019."""
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight
