"""The pictures of LFM2-VL (Liquid AI, 2025): SigLIP 2 (Tschannen et al., 2025) in any size, shuffled pixels."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from engine.models.encoders.layer_products import PREFIX, LayerProducts, biased_leaves, norm_leaves, vector_leaf
from engine.models.encoders.patch_vision import BLOCK, PatchVision
from engine.models.encoders.picture_tensors import prefixes_of
from engine.models.encoders.siglip import ACTIVATIONS, activated, layer_norm, read_activation
from engine.models.encoders.vision_encoder import MAX_SIZE, Colours
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf

_FIRST = "embeddings.patch_embedding.weight"  # the first tensor of the tower
_PROJECTOR = "multi_modal_projector."
_PROJECTION = f"{_PROJECTOR}linear_1.weight"
_LAYERS = "encoder.layers"
_MERGE_SIZE, _PROJECTED = 2, 2560  # where config.json says nothing; source: transformers' Lfm2VlConfig
_PROJECTOR_EPSILON = 1e-5
# Likewise; source: transformers' Siglip2VisionConfig.
_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "patch_size": 16, "num_patches": 256,
}  # fmt: skip


@dataclass(frozen=True)
class Lfm2Vision(PatchVision):
    """Each patch attends to all; a learned grid of positions is stretched over the picture."""

    projector_prefix: str
    num_places_a_side: int  # of this grid
    epsilon: float
    activation: str
    projected_size: int  # features between the two products behind the tower
    projector_activation: str
    has_projector_norm: bool
    has_projector_bias: bool

    largest = (256, 1024)

    @classmethod
    def read(cls, config: JsonFile, tensor_names: Set[str], hidden_size: int) -> Lfm2Vision | None:
        """Reads `config.json` of a folder; None where it has no tensors of an encoder. Raises ModelError."""
        prefixes = prefixes_of(config, tensor_names, (_FIRST, _PROJECTION))
        if prefixes is None:
            return None
        vision = (config.table("vision_config") or JsonFile(config.path, {})).with_defaults(_DEFAULTS)
        if vision.text("model_type") not in (None, "siglip2_vision_model"):
            raise vision.error("model_type", 'of this architecture it must be "siglip2_vision_model"')
        inner, feeding, num_layers, heads, patch, num_places = (
            vision.required_integer(name, least=1, most=MAX_SIZE) for name in _DEFAULTS
        )
        side = math.isqrt(num_places)
        if inner % heads:
            raise vision.error("num_attention_heads", f"it must divide hidden_size ({inner})")
        if side * side != num_places:
            raise vision.error("num_patches", "it must be a square")
        if vision.integer("num_channels", least=1) not in (None, 3):
            raise vision.error("num_channels", "pictures have 3")
        return cls(
            height=0, width=0, num_tokens=BLOCK, num_layers=num_layers, hidden_size=hidden_size, sees_both_ways=False,
            prefix=prefixes[0], inner_size=inner, intermediate_size=feeding, num_heads=heads, patch_size=patch,
            merge_size=config.integer("downsample_factor", least=1, most=MAX_SIZE) or _MERGE_SIZE,
            projector_prefix=prefixes[1] + _PROJECTOR, num_places_a_side=side,
            epsilon=vision.positive_number("layer_norm_eps") or 1e-6,
            activation=read_activation(vision, "hidden_act", "gelu_pytorch_tanh"),
            projected_size=config.integer("projector_hidden_size", least=1, most=MAX_SIZE) or _PROJECTED,
            projector_activation=read_activation(config, "projector_hidden_act", "gelu"),
            has_projector_norm=config.flag("projector_use_layernorm") is not False,
            has_projector_bias=config.flag("projector_bias") is not False,
            colours=Colours.read(config, Colours()),
        )  # fmt: skip

    def leaves(self) -> tuple[Leaf, ...]:
        inner, feeding, patch, tower = self.inner_size, self.intermediate_size, self.patch_size, self.prefix
        layers, of_layer = self.every_layer, f"{tower}{_LAYERS}.{{layer}}."
        kinds = (f"{of_layer}self_attn.{kind}_proj" for kind in "qkv")
        num_kept = 2 if self.has_projector_bias else 1
        projector, merged, projected = self.projector_prefix, self.merged_size, self.projected_size
        return (
            *self._pair("patch", (inner, 3 * patch**2), f"{tower}embeddings.patch_embedding"),
            self.single("position", (self.num_places_a_side**2, inner), "embeddings.position_embedding.weight"),
            *norm_leaves("norm1", inner, f"{of_layer}layer_norm1", layers),
            *biased_leaves("qkv", (inner, inner), *kinds, layers=layers),
            *biased_leaves("out", (inner, inner), f"{of_layer}self_attn.out_proj", layers=layers),
            *norm_leaves("norm2", inner, f"{of_layer}layer_norm2", layers),
            *biased_leaves("up", (feeding, inner), f"{of_layer}mlp.fc1", layers=layers, pads_outputs=True),
            *biased_leaves("down", (inner, feeding), f"{of_layer}mlp.fc2", layers=layers, pads_inputs=True),
            *norm_leaves("last_norm", inner, f"{tower}post_layernorm"),
            *(norm_leaves("projector_norm", merged, f"{projector}layer_norm") if self.has_projector_norm else ()),
            *self._pair("projection1", (projected, merged), f"{projector}linear_1")[:num_kept],
            *self._pair("projection2", (self.hidden_size, projected), f"{projector}linear_2")[:num_kept],
        )

    def begin(self, params: Params, pixels: jax.Array, grid: jax.Array) -> jax.Array:
        colours = self.colours.normalized(pixels).reshape(len(pixels), -1)
        embedded = colours @ params[f"{PREFIX}patch"][0] + params[f"{PREFIX}patch_bias"][0]
        learned = params[f"{PREFIX}position"][0].T
        rows, columns = (
            self._shares(jnp.minimum(place, num - 1), num)
            for place, num in zip(self.places(len(pixels), grid), grid * self.merge_size, strict=True)
        )
        shares = (rows[:, :, None] * columns[:, None, :]).reshape(len(pixels), -1)
        made: jax.Array = embedded + shares @ learned
        return made

    def layer(self, x: jax.Array, grid: jax.Array, products: LayerProducts) -> jax.Array:
        qkv = products.product(x, "qkv", products.norm("norm1", self.epsilon))
        x = products.add_product(x, products.attend(qkv, self.num_heads), "out")
        inner = products.product(x, "up", products.norm("norm2", self.epsilon), ACTIVATIONS[self.activation])
        return products.add_product(x, inner, "down")

    def end(self, x: jax.Array, grid: jax.Array, products: LayerProducts) -> jax.Array:
        of = products.of

        def product(x: jax.Array, name: str) -> jax.Array:
            made = x @ of(name)
            return made + of(f"{name}_bias") if self.has_projector_bias else made

        squares = layer_norm(x, of("last_norm"), of("last_norm_bias"), self.epsilon).reshape(-1, self.merged_size)
        if self.has_projector_norm:
            squares = layer_norm(squares, of("projector_norm"), of("projector_norm_bias"), _PROJECTOR_EPSILON)
        inner = activated(product(squares, "projection1"), ACTIVATIONS[self.projector_activation])
        return product(inner, "projection2")

    def _shares(self, place: jax.Array, num: jax.Array) -> jax.Array:
        """The shares of the learned places of an axis at patches of a picture that has so many, [num_patches, places].

        They are those of bilinear interpolation, over more places where the picture has fewer (antialiasing).
        """
        scale = self.num_places_a_side / num.astype(jnp.float32)
        centre = (place.astype(jnp.float32) + 0.5) * scale - 0.5
        distance = jnp.abs(jnp.arange(self.num_places_a_side) - centre[:, None])
        shares = jnp.maximum(1 - distance / jnp.maximum(scale, 1), 0)
        return shares / jnp.sum(shares, axis=-1, keepdims=True)

    def _pair(self, leaf: str, shape: tuple[int, ...], name: str) -> tuple[Leaf, Leaf]:
        """Weights outside the layers, and their biases."""
        return vector_leaf(leaf, shape, f"{name}.weight"), vector_leaf(f"{leaf}_bias", shape[:1], f"{name}.bias")
