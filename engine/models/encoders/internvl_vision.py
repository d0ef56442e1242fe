"""The pictures of InternVL 3 (Zhu et al., 2025): tiles of InternViT, whose pixels are shuffled, and a projection."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from engine.interface.types import IMAGENET_MEAN, IMAGENET_STD
from engine.models.encoders.layer_products import PREFIX, LayerProducts, biased_leaves, norm_leaves, vector_leaf
from engine.models.encoders.patch_vision import rms_norm
from engine.models.encoders.picture_tensors import prefixes_of
from engine.models.encoders.siglip import ACTIVATIONS, activated, layer_norm, read_activation
from engine.models.encoders.vision_encoder import MAX_SIZE, Colours, VisionEncoder
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf

_FIRST = "embeddings.cls_token"  # the first tensor of the tower
_PROJECTOR = "multi_modal_projector."
_PROJECTION = f"{_PROJECTOR}linear_1.weight"
_QUERY_KEY_EPSILON, _PROJECTOR_EPSILON = 1e-6, 1e-5
# Where config.json says nothing; source: transformers' InternVLVisionConfig.
_DEFAULTS: dict[str, Any] = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "image_size": 448, "patch_size": 14,
}  # fmt: skip


@dataclass(frozen=True)
class InternVLVision(VisionEncoder):
    """Each patch attends to all and to a class token; the patches of each small square become one token."""

    tower_prefix: str
    projector_prefix: str
    inner_size: int
    intermediate_size: int
    num_heads: int
    patch_size: int
    scale_factor: int  # patches on a side of these squares
    epsilon: float
    activation: str
    projector_activation: str
    has_rms_norms: bool
    has_qkv_bias: bool
    has_query_key_norm: bool
    has_position: bool
    has_last_norm: bool

    @classmethod
    def read(cls, config: JsonFile, tensor_names: Set[str], hidden_size: int) -> InternVLVision | None:
        """Reads `config.json` of a folder; None where it has no tensors of an encoder. Raises ModelError."""
        prefixes = prefixes_of(config, tensor_names, (_FIRST, _PROJECTION))
        if prefixes is None:
            return None
        vision = (config.table("vision_config") or JsonFile(config.path, {})).with_defaults(_DEFAULTS)
        inner, feeding, num_layers, heads = (
            vision.required_integer(name, least=1, most=MAX_SIZE) for name in list(_DEFAULTS)[:4]
        )
        image, patch = (_read_side(vision, name) for name in ("image_size", "patch_size"))
        if inner % heads:
            raise vision.error("num_attention_heads", f"it must divide hidden_size ({inner})")
        if image % patch:
            raise vision.error("image_size", f"it must be a multiple of patch_size ({patch})")
        if (image // patch) ** 2 > MAX_SIZE:  # where there is a tensor of positions, its shape would tell
            raise vision.error("image_size", f"tiles of at most {MAX_SIZE} patches are served")
        if vision.integer("num_channels", least=1) not in (None, 3):
            raise vision.error("num_channels", "pictures have 3")
        if vision.text("norm_type") not in (None, "layer_norm", "rms_norm"):
            raise vision.error("norm_type", 'it must be "layer_norm" or "rms_norm"')
        if config.value("vision_feature_layer") not in (None, -1):
            raise config.error("vision_feature_layer", "it must be -1, the last layer")
        if config.text("vision_feature_select_strategy") not in (None, "default"):
            raise config.error("vision_feature_select_strategy", 'it must be "default", the patches alone')
        factor, side = _read_factor(config), image // patch
        if side % factor:
            raise config.error("downsample_ratio", f"its reciprocal must divide the {side} patches of a tile's side")
        return cls(
            height=image, width=image, num_tokens=(side // factor) ** 2, num_layers=num_layers,
            hidden_size=hidden_size, sees_both_ways=False, tower_prefix=prefixes[0],
            projector_prefix=prefixes[1] + _PROJECTOR, inner_size=inner, intermediate_size=feeding,
            num_heads=heads, patch_size=patch, scale_factor=factor,
            epsilon=vision.positive_number("layer_norm_eps") or 1e-6,
            activation=read_activation(vision, "hidden_act", "gelu"),
            projector_activation=read_activation(config, "projector_hidden_act", "gelu"),
            has_rms_norms=vision.text("norm_type") == "rms_norm", has_qkv_bias=vision.flag("attention_bias") is True,
            has_query_key_norm=vision.flag("use_qk_norm") is True,
            has_position=vision.flag("use_absolute_position_embeddings") is not False,
            has_last_norm=vision.flag("use_mean_pooling") is False,
            colours=Colours.read(config, Colours(IMAGENET_MEAN, IMAGENET_STD)),
        )  # fmt: skip

    @property
    def num_patches_a_side(self) -> int:
        return self.height // self.patch_size

    def inner_shape(self, bucket: int) -> tuple[int, int]:
        """As `VisionEncoder.inner_shape`, with the class token first."""
        return 1 + self.num_patches_a_side**2, self.inner_size

    def leaves(self) -> tuple[Leaf, ...]:
        inner, feeding, hidden, patch = self.inner_size, self.intermediate_size, self.hidden_size, self.patch_size
        merged, places = inner * self.scale_factor**2, (1, 1 + self.num_patches_a_side**2, inner)
        embeddings, projector = f"{self.tower_prefix}embeddings.", self.projector_prefix
        layers, of_layer = tuple(range(self.num_layers)), f"{self.tower_prefix}encoder.layer.{{layer}}."
        kinds = [f"{of_layer}attention.{kind}_proj" for kind in "qkv"]
        of_products = (
            *biased_leaves("qkv", (inner, inner), *kinds, layers=layers)[: 2 if self.has_qkv_bias else 1],
            *biased_leaves("out", (inner, inner), f"{of_layer}attention.projection_layer", layers=layers),
            *biased_leaves("up", (feeding, inner), f"{of_layer}mlp.fc1", layers=layers, pads_outputs=True),
            *biased_leaves("down", (inner, feeding), f"{of_layer}mlp.fc2", layers=layers, pads_inputs=True),
        )
        num_kept = 1 if self.has_rms_norms else 2
        query_key_norms = [
            vector_leaf(f"{kind}_norm", (inner,), f"{of_layer}attention.{kind}_norm.weight", layers=layers)
            for kind in "qk"
        ]
        return (
            vector_leaf("class", (1, 1, inner), f"{embeddings}cls_token"),
            *_pair("patch", (inner, 3, patch, patch), f"{embeddings}patch_embeddings.projection"),
            *([vector_leaf("position", places, f"{embeddings}position_embeddings")] if self.has_position else []),
            *norm_leaves("norm1", inner, f"{of_layer}layernorm_before", layers)[:num_kept],
            *norm_leaves("norm2", inner, f"{of_layer}layernorm_after", layers)[:num_kept],
            *(query_key_norms if self.has_query_key_norm else ()),
            *of_products,
            vector_leaf("scale1", (inner,), f"{of_layer}lambda_1", layers=layers),
            vector_leaf("scale2", (inner,), f"{of_layer}lambda_2", layers=layers),
            *(norm_leaves("last_norm", inner, f"{self.tower_prefix}layernorm") if self.has_last_norm else ()),
            *norm_leaves("projector_norm", merged, f"{projector}layer_norm"),
            *_pair("projection1", (hidden, merged), f"{projector}linear_1"),
            *_pair("projection2", (hidden, hidden), f"{projector}linear_2"),
        )

    def begin(self, params: Params, pixels: jax.Array, grid: jax.Array) -> jax.Array:
        side, patch, colours = self.num_patches_a_side, self.patch_size, self.colours.normalized(pixels)
        patches = colours.reshape(side, patch, side, patch, 3).transpose(0, 2, 1, 3, 4).reshape(side * side, -1)
        # A leaf is a tensor, here [inner, colour, row, column], with all axes reversed.
        weights = params[f"{PREFIX}patch"][0].transpose(1, 0, 2, 3).reshape(-1, self.inner_size)
        embedded = patches @ weights + params[f"{PREFIX}patch_bias"][0]
        x = jnp.concatenate([params[f"{PREFIX}class"][0].reshape(1, -1), embedded])
        return x + params[f"{PREFIX}position"][0][:, :, 0].T if self.has_position else x

    def layer(self, x: jax.Array, grid: jax.Array, products: LayerProducts) -> jax.Array:
        qkv = products.product(x, "qkv", products.norm("norm1", self.epsilon))
        if self.has_query_key_norm:
            q, k, v = jnp.split(qkv, 3, axis=-1)
            q, k = (
                rms_norm(each, products.of(f"{name}_norm"), _QUERY_KEY_EPSILON) for each, name in ((q, "q"), (k, "k"))
            )
            qkv = jnp.concatenate([q, k, v], axis=-1)
        x = x + products.of("scale1") * products.product(products.attend(qkv, self.num_heads), "out")
        inner = products.product(x, "up", products.norm("norm2", self.epsilon), ACTIVATIONS[self.activation])
        return x + products.of("scale2") * products.product(inner, "down")

    def end(self, x: jax.Array, grid: jax.Array, products: LayerProducts) -> jax.Array:
        of = products.of

        if self.has_last_norm:
            x = layer_norm(x, of("last_norm"), of("last_norm_bias"), self.epsilon)
        factor, size = self.scale_factor, self.num_patches_a_side // self.scale_factor
        squares = x[1:].reshape(size, factor, size, factor, -1).transpose(0, 2, 1, 3, 4).reshape(self.num_tokens, -1)
        normed = layer_norm(squares, of("projector_norm"), of("projector_norm_bias"), _PROJECTOR_EPSILON)
        inner = normed @ of("projection1") + of("projection1_bias")
        inner = activated(inner, ACTIVATIONS[self.projector_activation])
        return inner @ of("projection2") + of("projection2_bias")


def _pair(leaf: str, shape: tuple[int, ...], name: str) -> tuple[Leaf, Leaf]:
    """Weights outside the layers, and their biases."""
    return vector_leaf(leaf, shape, f"{name}.weight"), vector_leaf(f"{leaf}_bias", shape[:1], f"{name}.bias")


def _read_side(vision: JsonFile, name: str) -> int:
    """The side of a square, which may be stated twice; raises ModelError."""
    value = vision.value(name)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        vision = vision.with_values({name: value[0]})
    elif isinstance(value, list):
        raise vision.error(name, "it must be one number, or the same one twice")
    return vision.required_integer(name, least=1, most=MAX_SIZE)


def _read_factor(config: JsonFile) -> int:
    """Patches on a side of the squares that become tokens; raises ModelError."""
    ratio = config.positive_number("downsample_ratio") or 0.5
    factor = round(min(1 / ratio, MAX_SIZE))
    if factor < 1 or not math.isclose(factor * ratio, 1):
        raise config.error("downsample_ratio", "it must be the reciprocal of a whole number")
    return factor
