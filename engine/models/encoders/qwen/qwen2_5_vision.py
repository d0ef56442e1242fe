"""The pictures of Qwen2.5-VL (Qwen Team, "Qwen2.5-VL Technical Report", 2025): windows, gated blocks, RMS norms."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from engine.backends.base.operands import Activation
from engine.interface.types import CLIP_MEAN, CLIP_STD
from engine.models.encoders.layer_products import LayerProducts, biased_leaves, vector_leaf
from engine.models.encoders.patch_vision import rms_norm
from engine.models.encoders.qwen.qwen_vision import MOST, QwenVision
from engine.models.encoders.vision_encoder import Colours
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf

_EPSILON = 1e-6
# Where config.json says nothing; source: transformers' Qwen2_5_VLVisionConfig.
_DEFAULTS: dict[str, Any] = {
    "depth": 32, "hidden_size": 3584, "intermediate_size": 3420, "num_heads": 16, "patch_size": 14,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
}  # fmt: skip


@dataclass(frozen=True)
class Qwen25Vision(QwenVision):
    """Patches attend within windows, and to all in some layers."""

    window_size: int  # squares on a side of a window
    full_layers: tuple[int, ...]  # those whose patches attend to all

    usual_colours = Colours(CLIP_MEAN, CLIP_STD)

    @classmethod
    def read(cls, config: JsonFile, tensor_names: Set[str], hidden_size: int) -> Qwen25Vision | None:
        """Reads `config.json` of a folder; None where it has no tensors of an encoder. Raises ModelError."""
        sizes = cls.read_sizes(config, tensor_names, hidden_size, _DEFAULTS, "silu")
        if sizes is None:
            return None
        vision, fields = sizes
        full = vision.value("fullatt_block_indexes")
        if not isinstance(full, list) or any(not isinstance(each, int) for each in full):
            raise vision.error("fullatt_block_indexes", "it must be a list of integers")
        pixels = vision.required_integer("spatial_merge_size", least=1) * vision.required_integer("patch_size", least=1)
        window = vision.required_integer("window_size", least=1, most=MOST) // pixels
        if window < 1:
            raise vision.error("window_size", f"it must be at least {pixels}")
        return cls(**fields, window_size=window, full_layers=tuple(full))

    def leaves(self) -> tuple[Leaf, ...]:
        inner, feeding, merged, layers = self.inner_size, self.intermediate_size, self.merged_size, self.every_layer
        gated = (self.of_layers(f"mlp.{kind}_proj") for kind in ("gate", "up"))
        return (
            self.patch_leaf(),
            *self.attention_leaves(),
            vector_leaf("norm1", (inner,), f"{self.of_layers('norm1')}.weight", layers=layers),
            vector_leaf("norm2", (inner,), f"{self.of_layers('norm2')}.weight", layers=layers),
            *biased_leaves("gate_up", (feeding, inner), *gated, layers=layers, is_gated=True, pads_outputs=True),
            *biased_leaves("down", (inner, feeding), self.of_layers("mlp.down_proj"), layers=layers, pads_inputs=True),
            self.single("last_norm", (inner,), "merger.ln_q.weight"),
            *biased_leaves("merger", (merged, merged), f"{self.prefix}merger.mlp.0"),
            *biased_leaves("projection", (self.hidden_size, merged), f"{self.prefix}merger.mlp.2"),
        )

    def begin(self, params: Params, pixels: jax.Array, grid: jax.Array) -> jax.Array:
        """As `VisionEncoder.begin`; the squares of a window lie beside each other from here to the end."""
        squares = self.patches(params, pixels).reshape(-1, self.merge_size**2, self.inner_size)
        order, _ = self._by_windows(len(squares), grid)
        return squares[order].reshape(len(pixels), -1)

    def layer(self, x: jax.Array, grid: jax.Array, products: LayerProducts) -> jax.Array:
        num_squares, merged = len(x) // self.merge_size**2, self.merge_size**2
        order, window = self._by_windows(num_squares, grid)
        row, column = (each.reshape(-1, merged)[order].reshape(-1) for each in self.places(len(x), grid))
        # Of each square, the first of its window and the first behind it.
        first, behind = (jnp.searchsorted(window, window, side=side) for side in ("left", "right"))
        is_full = jnp.isin(products.index, np.array(self.full_layers, np.int32))
        seen = (
            jnp.repeat(jnp.where(is_full, own, every) * merged, merged).astype(jnp.int32)
            for own, every in ((0, first), (grid[0] * grid[1], behind))
        )
        first_seen, last_seen = seen
        seeing = products.patches._replace(first_seen=first_seen, last_seen=last_seen - 1)
        qkv = products.product(x, "qkv", products.norm("norm1", _EPSILON))
        attended = replace(products, patches=seeing).attend(qkv, self.num_heads, angles=self.angles(row, column))
        x = products.add_product(x, attended, "out")
        norm = products.norm("norm2", _EPSILON)
        return products.add_product(x, products.product(x, "gate_up", norm, Activation.SILU, is_gated=True), "down")

    def end(self, x: jax.Array, grid: jax.Array, products: LayerProducts) -> jax.Array:
        squares = rms_norm(x, products.of("last_norm"), _EPSILON).reshape(-1, self.merged_size)
        tokens = self.tokens(products, len(x), grid)
        made = tokens.product(tokens.product(squares, "merger", None, Activation.GELU_ERF), "projection")
        order, _ = self._by_windows(len(squares), grid)
        return jnp.zeros_like(made).at[order].set(made)

    def _by_windows(self, num_squares: int, grid: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The squares in the order of their windows, those behind the picture last, and in it their windows."""
        row, column = jnp.divmod(jnp.arange(num_squares), grid[1])
        window = row // self.window_size * num_squares + column // self.window_size
        window = jnp.where(row < grid[0], window, num_squares**2)
        order = jnp.argsort(window, stable=True)
        return order, window[order]
