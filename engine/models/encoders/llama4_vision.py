"""The pictures of Llama 4 (Meta, "The Llama 4 herd", 2025): tiles, patches rotated by columns and rows."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from engine.backends.base.operands import Activation
from engine.models.encoders.layer_products import PREFIX, LayerProducts, biased_leaves, norm_leaves, vector_leaf
from engine.models.encoders.patch_vision import read_theta
from engine.models.encoders.picture_tensors import prefixes_of
from engine.models.encoders.siglip import layer_norm
from engine.models.encoders.vision_encoder import MAX_SIZE, Colours, VisionEncoder
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf

_FIRST = "vision_model.patch_embedding.linear.weight"  # the first tensor of the tower
_PROJECTION = "multi_modal_projector.linear_1.weight"
_EPSILON = 1e-5
_THETA = 10_000.0
# Where config.json says nothing; source: transformers' Llama4VisionConfig.
_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768, "intermediate_size": 5632, "num_hidden_layers": 34, "num_attention_heads": 16,
    "image_size": 448, "patch_size": 14, "projector_input_dim": 4096, "projector_output_dim": 4096,
    "vision_output_dim": 7680,
}  # fmt: skip
_RATIO = 0.5
_MOST_COLOUR = 255


@dataclass(frozen=True)
class Llama4Vision(VisionEncoder):
    """Each patch attends to all and to a class token; the patches of each small square become one token."""

    tower_prefix: str
    projector_prefix: str
    inner_size: int
    intermediate_size: int
    num_heads: int
    patch_size: int
    projected_size: int  # features of a square behind the two products of the tower
    theta: float
    scale_factor: int  # patches on a side of these squares

    @classmethod
    def read(cls, config: JsonFile, tensor_names: Set[str], hidden_size: int) -> Llama4Vision | None:
        """Reads `config.json` of a folder; None where it has no tensors of an encoder. Raises ModelError."""
        prefixes = prefixes_of(config, tensor_names, (_FIRST, _PROJECTION))
        if prefixes is None:
            return None
        vision = (config.table("vision_config") or JsonFile(config.path, {})).with_defaults(_DEFAULTS)
        inner, feeding, num_layers, heads, image, patch, projected, behind, output = (
            vision.required_integer(name, least=1, most=MAX_SIZE) for name in _DEFAULTS
        )
        if vision.text("hidden_act") not in (None, "gelu"):
            raise vision.error("hidden_act", 'of this architecture it must be "gelu"')
        if inner % (4 * heads):
            raise vision.error("num_attention_heads", f"hidden_size ({inner}) must be a multiple of 4 times as many")
        if image % patch:
            raise vision.error("image_size", f"it must be a multiple of patch_size ({patch})")
        if vision.integer("num_channels", least=1) not in (None, 3):
            raise vision.error("num_channels", "pictures have 3")
        ratio, side = vision.positive_number("pixel_shuffle_ratio") or _RATIO, image // patch
        factor = max(1, round(1 / max(ratio, 1 / MAX_SIZE)))
        if ratio != 1 / factor or side % factor:
            raise vision.error("pixel_shuffle_ratio", f"its reciprocal must divide the {side} patches of a tile's side")
        if feeding != inner * factor**2:
            raise vision.error("intermediate_size", f"it must be the features of {factor**2} patches")
        if not projected == behind == output:
            raise vision.error("projector_output_dim", "it must be projector_input_dim and vision_output_dim")
        if config.text("vision_feature_select_strategy") not in (None, "default"):
            raise config.error("vision_feature_select_strategy", 'it must be "default", the patches alone')
        return cls(
            height=image, width=image, num_tokens=(side // factor) ** 2, num_layers=num_layers,
            hidden_size=hidden_size, sees_both_ways=False, tower_prefix=f"{prefixes[0]}vision_model.",
            projector_prefix=prefixes[1], inner_size=inner, intermediate_size=feeding, num_heads=heads,
            patch_size=patch, projected_size=projected, theta=read_theta(vision, _THETA), scale_factor=factor,
            colours=Colours.read(config, Colours()),
        )  # fmt: skip

    @property
    def num_patches_a_side(self) -> int:
        return self.height // self.patch_size

    def inner_shape(self, bucket: int) -> tuple[int, int]:
        """As `VisionEncoder.inner_shape`, with the class token last."""
        return self.num_patches_a_side**2 + 1, self.inner_size

    def leaves(self) -> tuple[Leaf, ...]:
        inner, feeding, projected, tower = (
            self.inner_size,
            self.intermediate_size,
            self.projected_size,
            self.tower_prefix,
        )
        num_places, adapter = self.num_patches_a_side**2 + 1, f"{tower}vision_adapter.mlp."
        layers, of_layer = tuple(range(self.num_layers)), f"{tower}model.layers.{{layer}}."
        kinds = (f"{of_layer}self_attn.{kind}_proj" for kind in "qkv")
        return (
            vector_leaf("patch", (inner, 3 * self.patch_size**2), f"{tower}patch_embedding.linear.weight"),
            vector_leaf("class", (inner,), f"{tower}class_embedding"),
            vector_leaf("position", (num_places, inner), f"{tower}positional_embedding_vlm"),
            *norm_leaves("first_norm", inner, f"{tower}layernorm_pre"),
            *norm_leaves("norm1", inner, f"{of_layer}input_layernorm", layers),
            *biased_leaves("qkv", (inner, inner), *kinds, layers=layers),
            *biased_leaves("out", (inner, inner), f"{of_layer}self_attn.o_proj", layers=layers),
            *norm_leaves("norm2", inner, f"{of_layer}post_attention_layernorm", layers),
            *biased_leaves("up", (feeding, inner), f"{of_layer}mlp.fc1", layers=layers, pads_outputs=True),
            *biased_leaves("down", (inner, feeding), f"{of_layer}mlp.fc2", layers=layers, pads_inputs=True),
            *norm_leaves("last_norm", inner, f"{tower}layernorm_post"),
            vector_leaf("adapter1", (projected, feeding), f"{adapter}fc1.weight"),
            vector_leaf("adapter2", (projected, projected), f"{adapter}fc2.weight"),
            vector_leaf("projection", (self.hidden_size, projected), self.projector_prefix + _PROJECTION),
        )

    def begin(self, params: Params, pixels: jax.Array, grid: jax.Array) -> jax.Array:
        side, patch, colours = self.num_patches_a_side, self.patch_size, _normalized(pixels, self.colours)
        # The features of a patch are all of one colour after the other.
        patches = colours.reshape(side, patch, side, patch, 3).transpose(0, 2, 4, 1, 3).reshape(side * side, -1)
        embedded = patches @ params[f"{PREFIX}patch"][0]
        x = jnp.concatenate([embedded, params[f"{PREFIX}class"][0].reshape(1, -1)]) + params[f"{PREFIX}position"][0].T
        return _normed(x, params, "first_norm")

    def layer(self, x: jax.Array, grid: jax.Array, products: LayerProducts) -> jax.Array:
        qkv = products.product(x, "qkv", products.norm("norm1", _EPSILON))
        # Features that are rotated together lie beside each other; queries and keys are put in another order alike.
        q, k, v = (each.reshape(len(x), self.num_heads, -1) for each in jnp.split(qkv, 3, axis=-1))
        q, k = (jnp.concatenate([each[..., ::2], each[..., 1::2]], axis=-1) for each in (q, k))
        qkv = jnp.stack([q, k, v], axis=1).reshape(len(x), -1)
        attended = products.attend(qkv, self.num_heads, angles=self._angles(q.shape[-1]))
        x = products.add_product(x, attended, "out")
        inner = products.product(x, "up", products.norm("norm2", _EPSILON), Activation.GELU_ERF)
        return products.add_product(x, inner, "down")

    def end(self, x: jax.Array, grid: jax.Array, products: LayerProducts) -> jax.Array:
        params = products.params
        factor, size = self.scale_factor, self.num_patches_a_side // self.scale_factor
        patches = _normed(x, params, "last_norm")[:-1].reshape(size, factor, size, factor, -1)
        made = patches.transpose(0, 2, 1, 3, 4).reshape(self.num_tokens, -1)
        for leaf in ("adapter1", "adapter2"):
            made = jax.nn.gelu(made @ params[PREFIX + leaf][0], approximate=False)
        projected: jax.Array = made @ params[f"{PREFIX}projection"][0]
        return projected

    def _angles(self, head_dim: int) -> jax.Array:
        """[patches and the class token, head_dim / 2]: half of them by columns, half by rows, both from 1 on."""
        side, width = self.num_patches_a_side, head_dim // 2
        inverse = 1.0 / self.theta ** (np.arange(0, width, 2, dtype=np.float32) / width)
        row, column = np.divmod(np.arange(side**2), side)
        angles = np.concatenate([(column[:, None] + 1) * inverse, (row[:, None] + 1) * inverse], axis=-1)
        return jnp.asarray(np.concatenate([angles, np.zeros((1, width))]).astype(np.float32))


def _normalized(pixels: jax.Array, colours: Colours) -> jax.Array:
    """As `Colours.normalized`, of which transformers' processor rounds each step to bfloat16."""
    mean, deviation = (np.array(each, np.float32) for each in colours)
    share = _rounded(pixels.astype(jnp.float32) * np.float32(1 / _MOST_COLOUR))
    return _rounded(_rounded(share - mean) / deviation)


def _rounded(x: jax.Array) -> jax.Array:
    return lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


def _normed(x: jax.Array, params: Params, leaf: str) -> jax.Array:
    return layer_norm(x, params[PREFIX + leaf][0], params[f"{PREFIX}{leaf}_bias"][0], _EPSILON)
