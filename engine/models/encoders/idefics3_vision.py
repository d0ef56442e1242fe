"""The pictures of Idefics 3 and SmolVLM (Laurençon et al., 2024; Marafioti et al., 2025): SigLIP, shuffled pixels."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import jax

from engine.models.encoders.layer_products import LayerProducts
from engine.models.encoders.picture_tensors import prefixes_of
from engine.models.encoders.siglip import Siglip
from engine.models.encoders.vision_encoder import Colours, VisionEncoder
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Stored

_TOWER = "model.vision_model."
_FIRST = f"{_TOWER}embeddings.patch_embedding.weight"  # the first tensor of the tower
_PROJECTION = "model.connector.modality_projection.proj.weight"
_SCALE_FACTOR = 2  # where config.json says nothing; source: transformers' Idefics3Config
# Likewise; source: transformers' Idefics3VisionConfig.
_DEFAULTS: dict[str, Any] = {
    "hidden_size": 1152, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 16,
    "image_size": 224, "patch_size": 32,
}  # fmt: skip


@dataclass(frozen=True)
class Idefics3Vision(VisionEncoder):
    """A square tile of SigLIP; the patches of each small square become one token."""

    tower: Siglip
    scale_factor: int  # patches on a side of these squares

    @classmethod
    def read(cls, config: JsonFile, tensor_names: Set[str], hidden_size: int) -> Idefics3Vision | None:
        """Reads `config.json` of a folder; None where it has no tensors of an encoder. Raises ModelError."""
        if prefixes_of(config, tensor_names, (_FIRST, _PROJECTION)) is None:
            return None
        tower = Siglip.read((config.table("vision_config") or JsonFile(config.path, {})).with_defaults(_DEFAULTS))
        factor = config.integer("scale_factor", least=1) or _SCALE_FACTOR
        side = tower.num_patches_a_side
        if side % factor:
            raise config.error("scale_factor", f"it must divide the {side} patches of a tile's side")
        num_tokens = (side // factor) ** 2
        size = tower.image_size
        colours = Colours.read(config, Colours())
        return cls(size, size, num_tokens, tower.num_layers, hidden_size, False, tower, factor, colours=colours)

    def inner_shape(self, bucket: int) -> tuple[int, int]:
        return self.tower.num_patches, self.tower.hidden_size

    def leaves(self) -> tuple[Leaf, ...]:
        shape = (self.hidden_size, self.tower.hidden_size * self.scale_factor**2)
        part = Part(shape, {"safetensors": Stored(_PROJECTION)})
        projection = Leaf("vision.projection", LeafKind.VECTOR, (part,), is_per_layer=False, is_exact=True)
        return (*self.tower.leaves(_TOWER), projection)

    def begin(self, params: Params, pixels: jax.Array, grid: jax.Array) -> jax.Array:
        return self.tower.begin(params, pixels, self.colours)

    def layer(self, x: jax.Array, grid: jax.Array, products: LayerProducts) -> jax.Array:
        return self.tower.layer(x, products)

    def end(self, x: jax.Array, grid: jax.Array, products: LayerProducts) -> jax.Array:
        params = products.params
        factor = self.scale_factor
        size = self.tower.num_patches_a_side // factor
        squares = self.tower.end(params, x).reshape(size, factor, size, factor, -1)
        features = squares.transpose(0, 2, 1, 3, 4).reshape(self.num_tokens, -1)
        # A leaf is the tensor [hidden, features] with its axes reversed.
        projected: jax.Array = features @ params["vision.projection"][0]
        return projected
