"""The pictures of Qwen3-VL (Qwen Team, "Qwen3-VL Technical Report", 2025), with deep stack (Meng et al., 2024)."""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from engine.models.encoders.patch_vision import PREFIX, of_layer
from engine.models.encoders.qwen_vision import FIRST, QwenVision
from engine.models.encoders.siglip import layer_norm
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf

_EPSILON = 1e-6
_HALVES = (0.5, 0.5, 0.5)
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

    colour_mean = _HALVES
    colour_deviation = _HALVES

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
        return cls(**fields, num_places_a_side=side, deep_layers=tuple(deep))

    @property
    def num_deep(self) -> int:
        return len(self.deep_layers)

    def inner_shape(self, bucket: int) -> tuple[int, int]:
        """As `VisionEncoder.inner_shape`, with the outputs of the deep layers beside that of the last one."""
        return bucket * self.merge_size**2, self.inner_size * (1 + self.num_deep)

    def leaves(self) -> tuple[Leaf, ...]:
        inner, feeding, merged, hidden = self.inner_size, self.intermediate_size, self.merged_size, self.hidden_size
        deep: dict[str, Any] = {"where": "deepstack_merger_list", "number": self.num_deep}
        of_deep = (
            self.layered("deep_norm", (merged,), "norm.weight", **deep),
            self.layered("deep_norm_bias", (merged,), "norm.bias", **deep),
            self.layered("deep_merger", (merged, merged), "linear_fc1.weight", **deep),
            self.layered("deep_merger_bias", (merged,), "linear_fc1.bias", **deep),
            self.layered("deep_projection", (hidden, merged), "linear_fc2.weight", **deep),
            self.layered("deep_projection_bias", (hidden,), "linear_fc2.bias", **deep),
        )
        return (
            self.patch_leaf(),
            self.single("patch_bias", (inner,), FIRST.replace("weight", "bias")),
            self.single("position", (self.num_places_a_side**2, inner), "pos_embed.weight"),
            *self.attention_leaves(),
            self.layered("norm1", (inner,), "norm1.weight"),
            self.layered("norm1_bias", (inner,), "norm1.bias"),
            self.layered("norm2", (inner,), "norm2.weight"),
            self.layered("norm2_bias", (inner,), "norm2.bias"),
            self.layered("up", (feeding, inner), "mlp.linear_fc1.weight"),
            self.layered("up_bias", (feeding,), "mlp.linear_fc1.bias"),
            self.layered("down", (inner, feeding), "mlp.linear_fc2.weight"),
            self.layered("down_bias", (inner,), "mlp.linear_fc2.bias"),
            self.single("last_norm", (inner,), "merger.norm.weight"),
            self.single("last_norm_bias", (inner,), "merger.norm.bias"),
            self.single("merger", (merged, merged), "merger.linear_fc1.weight"),
            self.single("merger_bias", (merged,), "merger.linear_fc1.bias"),
            self.single("projection", (hidden, merged), "merger.linear_fc2.weight"),
            self.single("projection_bias", (hidden,), "merger.linear_fc2.bias"),
            *(of_deep if self.num_deep else ()),
        )

    def begin(self, params: Params, pixels: jax.Array, grid: jax.Array) -> jax.Array:
        x = self.patches(params, pixels) + params[f"{PREFIX}patch_bias"][0] + self._positions(params, len(pixels), grid)
        return jnp.pad(x, ((0, 0), (0, self.inner_size * self.num_deep)))

    def layer(self, params: Params, x: jax.Array, grid: jax.Array, index: jax.Array) -> jax.Array:
        of = of_layer(params, index)
        last, *deep = jnp.split(x, 1 + self.num_deep, axis=-1)
        last = last + self.attended(layer_norm(last, of("norm1"), of("norm1_bias"), _EPSILON), grid, of)
        inner = layer_norm(last, of("norm2"), of("norm2_bias"), _EPSILON) @ of("up") + of("up_bias")
        last = last + jax.nn.gelu(inner, approximate=True) @ of("down") + of("down_bias")
        known = [jnp.where(index == layer, last, each) for layer, each in zip(self.deep_layers, deep, strict=True)]
        return jnp.concatenate([last, *known], axis=-1)

    def end(self, params: Params, x: jax.Array) -> jax.Array:
        last, *deep = jnp.split(x, 1 + self.num_deep, axis=-1)
        weight, bias = params[f"{PREFIX}last_norm"][0], params[f"{PREFIX}last_norm_bias"][0]
        normed = layer_norm(last, weight, bias, _EPSILON)
        made = [self._merged(normed, lambda name: params[PREFIX + name][0])]
        for at, each in enumerate(deep):
            of = _of_deep(params, at)
            squares = each.reshape(-1, self.merged_size)
            made.append(self._merged(layer_norm(squares, of("norm"), of("norm_bias"), _EPSILON), of))
        return jnp.concatenate(made, axis=-1)

    def _merged(self, normed: jax.Array, of: Callable[[str], jax.Array]) -> jax.Array:
        inner = normed.reshape(-1, self.merged_size) @ of("merger") + of("merger_bias")
        return jax.nn.gelu(inner, approximate=False) @ of("projection") + of("projection_bias")

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


def _of_deep(params: Params, index: int) -> Callable[[str], jax.Array]:
    return lambda name: params[f"{PREFIX}deep_{name}"][index]
