"""The pictures of Qwen3-VL (Qwen Team, "Qwen3-VL Technical Report", 2025), with deep stack (Meng et al., 2024)."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from engine.backends.base.operands import Activation, Norm
from engine.models.encoders.layer_products import PREFIX, LayerProducts, biased_leaves, norm_leaves
from engine.models.encoders.qwen.qwen_vision import FIRST, QwenVision
from engine.models.encoders.siglip import layer_norm
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf

_EPSILON = 1e-6
# Where config.json says nothing; source: transformers' Qwen3VLVisionConfig.
_DEFAULTS: dict[str, Any] = {
    "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "patch_size": 16,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [8, 16, 24],
}  # fmt: skip


@dataclass(frozen=True)
class Qwen3Vision(QwenVision):
    """Each patch attends to all; what some layers compute is added behind the first layers of the text model."""

    num_places_a_side: int  # of the learned grid of positions, which is stretched over the picture
    deep_layers: tuple[int, ...]  # those whose outputs the text model gets beside that of the last one

    @classmethod
    def read(
        cls, config: JsonFile, tensor_names: Set[str], hidden_size: int, *, has_deep: bool = True
    ) -> Qwen3Vision | None:
        """Reads `config.json` of a folder; None where it has no tensors of an encoder. Raises ModelError.

        Args:
            has_deep: whether the architecture has deep stack.
        """
        sizes = cls.read_sizes(config, tensor_names, hidden_size, _DEFAULTS, "gelu_pytorch_tanh")
        if sizes is None:
            return None
        vision, fields = sizes
        num_places = vision.required_integer("num_position_embeddings", least=1)
        side = math.isqrt(num_places)
        if side * side != num_places:
            raise vision.error("num_position_embeddings", "it must be a square")
        deep, depth = vision.value("deepstack_visual_indexes") if has_deep else [], fields["num_layers"]
        if not isinstance(deep, list) or any(not isinstance(each, int) or not 0 <= each < depth for each in deep):
            raise vision.error("deepstack_visual_indexes", f"it must be a list of integers from 0 to {depth - 1}")
        if deep != sorted(set(deep)):
            raise vision.error("deepstack_visual_indexes", "its layers must be different ones, the first one first")
        return cls(**fields, num_places_a_side=side, deep_layers=tuple(deep))

    @property
    def num_deep(self) -> int:
        return len(self.deep_layers)

    def inner_shape(self, bucket: int) -> tuple[int, int]:
        """As `VisionEncoder.inner_shape`, with the outputs of the deep layers beside that of the last one."""
        return bucket * self.merge_size**2, self.inner_size * (1 + self.num_deep)

    def leaves(self) -> tuple[Leaf, ...]:
        inner, feeding, merged, hidden = self.inner_size, self.intermediate_size, self.merged_size, self.hidden_size
        layers, deep = self.every_layer, tuple(range(self.num_deep))
        of_deep, merger = f"{self.prefix}deepstack_merger_list.{{layer}}.", f"{self.prefix}merger."
        of_deep_stack = (
            *norm_leaves("deep_norm", merged, f"{of_deep}norm", deep),
            *biased_leaves("deep_merger", (merged, merged), f"{of_deep}linear_fc1", layers=deep),
            *biased_leaves("deep_projection", (hidden, merged), f"{of_deep}linear_fc2", layers=deep),
        )
        first, second = (self.of_layers(f"mlp.linear_fc{number}") for number in (1, 2))
        return (
            self.patch_leaf(),
            self.single("patch_bias", (inner,), FIRST.replace("weight", "bias")),
            self.single("position", (self.num_places_a_side**2, inner), "pos_embed.weight"),
            *self.attention_leaves(),
            *norm_leaves("norm1", inner, self.of_layers("norm1"), layers),
            *norm_leaves("norm2", inner, self.of_layers("norm2"), layers),
            *biased_leaves("up", (feeding, inner), first, layers=layers, pads_outputs=True),
            *biased_leaves("down", (inner, feeding), second, layers=layers, pads_inputs=True),
            *norm_leaves("last_norm", inner, f"{merger}norm"),
            *biased_leaves("merger", (merged, merged), f"{merger}linear_fc1"),
            *biased_leaves("projection", (hidden, merged), f"{merger}linear_fc2"),
            *(of_deep_stack if self.num_deep else ()),
        )

    def begin(self, params: Params, pixels: jax.Array, grid: jax.Array) -> jax.Array:
        x = self.patches(params, pixels) + params[f"{PREFIX}patch_bias"][0] + self._positions(params, len(pixels), grid)
        return jnp.pad(x, ((0, 0), (0, self.inner_size * self.num_deep)))

    def layer(self, x: jax.Array, grid: jax.Array, products: LayerProducts) -> jax.Array:
        last, *deep = jnp.split(x, 1 + self.num_deep, axis=-1)
        qkv = products.product(last, "qkv", products.norm("norm1", _EPSILON))
        angles = self.angles(*self.places(len(x), grid))
        last = products.add_product(last, products.attend(qkv, self.num_heads, angles=angles), "out")
        inner = products.product(last, "up", products.norm("norm2", _EPSILON), Activation.GELU_TANH)
        last = products.add_product(last, inner, "down")
        index = products.index
        known = [jnp.where(index == layer, last, each) for layer, each in zip(self.deep_layers, deep, strict=True)]
        return jnp.concatenate([last, *known], axis=-1)

    def end(self, x: jax.Array, grid: jax.Array, products: LayerProducts) -> jax.Array:
        last, *deep = jnp.split(x, 1 + self.num_deep, axis=-1)
        weight, bias = (products.of(f"last_norm{kind}") for kind in ("", "_bias"))
        normed = layer_norm(last, weight, bias, _EPSILON)
        tokens = self.tokens(products, len(x), grid)
        made = [self._merged(normed, tokens, "", None)]
        for at, each in enumerate(deep):
            of_deep = replace(tokens, index=jnp.int32(at))
            made.append(self._merged(each, of_deep, "deep_", of_deep.norm("deep_norm", _EPSILON)))
        return jnp.concatenate(made, axis=-1)

    def _merged(self, x: jax.Array, tokens: LayerProducts, leaf: str, norm: Norm | None) -> jax.Array:
        squares = x.reshape(-1, self.merged_size)
        inner = tokens.product(squares, f"{leaf}merger", norm, Activation.GELU_ERF)
        return tokens.product(inner, f"{leaf}projection")

    def _positions(self, params: Params, num_patches: int, grid: jax.Array) -> jax.Array:
        """The learned embeddings of places, interpolated between the four that are nearest to each patch."""
        side = self.num_places_a_side
        learned = params[f"{PREFIX}position"][0].T
        summed = jnp.zeros((num_patches, self.inner_size), jnp.float32)
        axes = []
        for place, num in zip(self.places(num_patches, grid), grid * self.merge_size, strict=True):
            at = place.astype(jnp.float32) * (side - 1) / jnp.maximum(num - 1, 1)
            low = jnp.floor(at)
            share = at - low
            first = jnp.minimum(low.astype(jnp.int32), side - 1)
            axes.append(((first, 1 - share), (jnp.minimum(first + 1, side - 1), share)))
        for row, of_row in axes[0]:
            for column, of_column in axes[1]:
                summed += learned[row * side + column] * (of_row * of_column)[:, None]
        return summed
