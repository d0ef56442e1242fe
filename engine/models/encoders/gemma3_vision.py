"""The pictures of Gemma 3 (Gemma Team, "Gemma 3 Technical Report", 2025): SigLIP, a mean over squares, a projection."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from engine.models.encoders.layer_products import LayerProducts
from engine.models.encoders.picture_tensors import prefixes_of
from engine.models.encoders.siglip import Siglip
from engine.models.encoders.vision_encoder import Colours, VisionEncoder
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Stored
from engine.weights.tensors import OneMore

_FIRST = "embeddings.patch_embedding.weight"  # the first tensor of the tower
_PROJECTION = "mm_input_projection_weight"
_NUM_TOKENS = 256  # where config.json says nothing; source: transformers' Gemma3Config


@dataclass(frozen=True)
class Gemma3Vision(VisionEncoder):
    """A square picture of SigLIP, whose patches are averaged to fewer tokens."""

    tower: Siglip
    tower_prefix: str
    projector_prefix: str

    @classmethod
    def read(cls, config: JsonFile, tensor_names: Set[str], hidden_size: int) -> Gemma3Vision | None:
        """Reads `config.json` of a folder; None where it has no tensors of an encoder. Raises ModelError."""
        vision = config.table("vision_config")
        prefixes = None if vision is None else prefixes_of(config, tensor_names, (_FIRST, _PROJECTION))
        if vision is None or prefixes is None:
            return None
        tower = Siglip.read(vision)
        num_tokens = config.integer("mm_tokens_per_image", least=1, most=1 << 16) or _NUM_TOKENS
        side = math.isqrt(num_tokens)
        if side * side != num_tokens or tower.num_patches_a_side % side:
            raise config.error(
                "mm_tokens_per_image",
                f"it must be a square whose side divides the {tower.num_patches_a_side} patches of a picture's side",
            )
        return cls(
            tower.image_size, tower.image_size, num_tokens, tower.num_layers, hidden_size, True,
            tower, *prefixes, colours=Colours.read(config, Colours()),
        )  # fmt: skip

    def inner_shape(self, bucket: int) -> tuple[int, int]:
        return self.tower.num_patches, self.tower.hidden_size

    def leaves(self) -> tuple[Leaf, ...]:
        inner = self.tower.hidden_size
        norm = Stored(f"{self.projector_prefix}mm_soft_emb_norm.weight", OneMore)
        projection = Stored(self.projector_prefix + _PROJECTION)
        return (
            *self.tower.leaves(self.tower_prefix),
            _single("vision.soft_norm", (inner,), norm),
            _single("vision.projection", (inner, self.hidden_size), projection),
        )

    def begin(self, params: Params, pixels: jax.Array, grid: jax.Array) -> jax.Array:
        return self.tower.begin(params, pixels, self.colours)

    def layer(self, x: jax.Array, grid: jax.Array, products: LayerProducts) -> jax.Array:
        return self.tower.layer(x, products)

    def end(self, x: jax.Array, grid: jax.Array, products: LayerProducts) -> jax.Array:
        params = products.params
        side = math.isqrt(self.num_tokens)
        size = self.tower.num_patches_a_side // side
        squares = self.tower.end(params, x).reshape(side, size, side, size, -1)
        means = jnp.mean(squares, axis=(1, 3)).reshape(self.num_tokens, -1)
        scale = lax.rsqrt(jnp.mean(means * means, axis=-1, keepdims=True) + self.tower.epsilon)
        # A leaf is the tensor [inner, hidden] with its axes reversed.
        projected: jax.Array = (means * scale * params["vision.soft_norm"][0]) @ params["vision.projection"][0].T
        return projected


def _single(name: str, shape: tuple[int, ...], stored: Stored) -> Leaf:
    part = Part(shape, {"safetensors": stored})
    return Leaf(name, LeafKind.VECTOR, (part,), is_per_layer=False, is_exact=True)
