"""The pictures of Qwen2.5-VL (Qwen Team, "Qwen2.5-VL Technical Report", 2025): windows, gated blocks, RMS norms."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from engine.interface.types import CLIP_MEAN, CLIP_STD
from engine.models.encoders.patch_vision import PREFIX, of_layer, rms_norm
from engine.models.encoders.qwen_vision import MOST, QwenVision
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

    colour_mean = CLIP_MEAN
    colour_deviation = CLIP_STD

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
        inner, feeding, merged = self.inner_size, self.intermediate_size, self.merged_size
        return (
            self.patch_leaf(),
            *self.attention_leaves(),
            self.layered("norm1", (inner,), "norm1.weight"),
            self.layered("norm2", (inner,), "norm2.weight"),
            self.layered("gate_up", (feeding, inner), "mlp.gate_proj.weight", "mlp.up_proj.weight"),
            self.layered("gate_up_bias", (feeding,), "mlp.gate_proj.bias", "mlp.up_proj.bias"),
            self.layered("down", (inner, feeding), "mlp.down_proj.weight"),
            self.layered("down_bias", (inner,), "mlp.down_proj.bias"),
            self.single("last_norm", (inner,), "merger.ln_q.weight"),
            self.single("merger", (merged, merged), "merger.mlp.0.weight"),
            self.single("merger_bias", (merged,), "merger.mlp.0.bias"),
            self.single("projection", (self.hidden_size, merged), "merger.mlp.2.weight"),
            self.single("projection_bias", (self.hidden_size,), "merger.mlp.2.bias"),
        )

    def begin(self, params: Params, pixels: jax.Array, grid: jax.Array) -> jax.Array:
        return self.patches(params, pixels)

    def layer(self, params: Params, x: jax.Array, grid: jax.Array, index: jax.Array) -> jax.Array:
        of = of_layer(params, index)
        is_full = jnp.isin(index, np.array(self.full_layers, np.int32))
        x = x + self.attended(rms_norm(x, of("norm1"), _EPSILON), grid, of, self.window_size, is_full)
        gate, up = jnp.split(rms_norm(x, of("norm2"), _EPSILON) @ of("gate_up") + of("gate_up_bias"), 2, axis=-1)
        return x + (jax.nn.silu(gate) * up) @ of("down") + of("down_bias")

    def end(self, params: Params, x: jax.Array) -> jax.Array:
        squares = rms_norm(x, params[f"{PREFIX}last_norm"][0], _EPSILON).reshape(-1, self.merged_size)
        merged = squares @ params[f"{PREFIX}merger"][0] + params[f"{PREFIX}merger_bias"][0]
        merged = jax.nn.gelu(merged, approximate=False)
        projected: jax.Array = merged @ params[f"{PREFIX}projection"][0] + params[f"{PREFIX}projection_bias"][0]
        return projected
