"""What the encoders of Qwen's models share: pictures of any size, whose patches are rotated by rows and columns."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from engine.backends.base.patches import patches
from engine.models.encoders.layer_products import PREFIX, LayerProducts, biased_leaves
from engine.models.encoders.patch_vision import BLOCK, PatchVision, read_theta
from engine.models.encoders.picture_tensors import prefixes_of
from engine.models.encoders.vision_encoder import Colours
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf

FIRST = "patch_embed.proj.weight"  # the first tensor of the encoder
MOST = 1 << 16  # of any size
_THETA = 10_000.0


@dataclass(frozen=True)
class QwenVision(PatchVision):
    """Patches that are rotated by their rows and columns, and of which each square is one product."""

    num_frames: int  # pictures of a video that one patch covers; a picture is taken as so many equal ones
    theta: float

    largest = (128, 512, 2048, 4096)
    uses_mrope: ClassVar[bool] = True
    usual_colours: ClassVar[Colours] = Colours()

    @classmethod
    def read_sizes(
        cls, config: JsonFile, tensor_names: Set[str], hidden_size: int, defaults: dict[str, Any], activation: str
    ) -> tuple[JsonFile, dict[str, Any]] | None:
        """The `vision_config` of a folder, and these fields; None where it has no tensors of an encoder.

        Raises ModelError.
        """
        vision = config.table("vision_config")
        prefixes = None if vision is None else prefixes_of(config, tensor_names, (FIRST,))
        if vision is None or prefixes is None:
            return None
        vision = vision.with_defaults(defaults)
        if vision.text("hidden_act") not in (None, activation):
            raise vision.error("hidden_act", f'of this architecture it must be "{activation}"')
        if vision.integer("in_channels", least=1) not in (None, 3):
            raise vision.error("in_channels", "pictures have 3")
        depth, inner, feeding, heads, patch, frames, merge = (
            vision.required_integer(name, least=1, most=MOST)
            for name in (
                "depth", "hidden_size", "intermediate_size", "num_heads", "patch_size", "temporal_patch_size",
                "spatial_merge_size",
            )
        )  # fmt: skip
        if inner % (4 * heads):
            raise vision.error("num_heads", f"hidden_size ({inner}) must be a multiple of 4 times as many")
        if vision.integer("out_hidden_size", least=1) not in (None, hidden_size):
            raise vision.error("out_hidden_size", f"it must be the hidden_size of the text model ({hidden_size})")
        fields = {
            "height": 0, "width": 0, "num_tokens": BLOCK, "num_layers": depth, "hidden_size": hidden_size,
            "sees_both_ways": False, "prefix": prefixes[0], "inner_size": inner, "intermediate_size": feeding,
            "num_heads": heads, "patch_size": patch, "num_frames": frames, "merge_size": merge,
            "theta": read_theta(vision, _THETA), "colours": Colours.read(config, cls.usual_colours),
        }  # fmt: skip
        return vision, fields

    @property
    def num_frames_a_patch(self) -> int:
        return self.num_frames

    def pixels_shape(self, bucket: int) -> tuple[int, ...]:
        num_patches, *rest = super().pixels_shape(bucket)
        return num_patches, self.num_frames, *rest

    def patch_leaf(self) -> Leaf:
        """The matrix of patches."""
        return self.single("patch", (self.inner_size, 3, self.num_frames, self.patch_size, self.patch_size), FIRST)

    def attention_leaves(self) -> tuple[Leaf, ...]:
        """Of queries, keys and values, and the product behind attention."""
        inner, of_layer = self.inner_size, self.of_layers("attn")
        return (
            *biased_leaves("qkv", (3 * inner, inner), f"{of_layer}.qkv", layers=self.every_layer),
            *biased_leaves("out", (inner, inner), f"{of_layer}.proj", layers=self.every_layer),
        )

    def of_layers(self, module: str) -> str:
        """The name of a module of each layer."""
        return f"{self.prefix}blocks.{{layer}}.{module}"

    def patches(self, params: Params, pixels: jax.Array) -> jax.Array:
        """The products of patches and their matrix."""
        colours = self.colours.normalized(pixels)
        # A leaf is the tensor [inner, colour, frame, row, column] with all axes reversed.
        weights = params[f"{PREFIX}patch"][0].transpose(2, 1, 0, 3, 4)
        products: jax.Array = colours.reshape(len(pixels), -1) @ weights.reshape(-1, self.inner_size)
        return products

    def angles(self, row: jax.Array, column: jax.Array) -> jax.Array:
        """By which the pairs of features of queries and keys are rotated: half of them by rows, half by columns."""
        size = self.inner_size // self.num_heads
        inverse = 1.0 / self.theta ** (np.arange(0, size // 2, 2, dtype=np.float32) / (size // 2))
        return jnp.concatenate([each[:, None].astype(jnp.float32) * inverse for each in (row, column)], axis=-1)

    def tokens(self, products: LayerProducts, num_patches: int, grid: jax.Array) -> LayerProducts:
        """The products of squares."""
        merged = self.merge_size**2
        return replace(products, patches=patches(num_patches // merged, grid[0] * grid[1]))
