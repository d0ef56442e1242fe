"""The pictures of Qwen2.5-VL (Qwen Team, "Qwen2.5-VL Technical Report", 2025): any size, windows, rotated patches."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from engine.interface.types import CLIP_MEAN, CLIP_STD
from engine.models.encoders.vision_encoder import VisionEncoder
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Stored

_FIRST = "patch_embed.proj.weight"  # the first tensor of the encoder
_LEAF = "vision."  # of its leaves' names
_MOST = 1 << 16  # of any size
_BUCKETS = (128, 512, 2048)  # tokens of the largest pictures
_BLOCK = 64  # tokens whose embeddings lie beside each other
_SCORES_AT_ONCE = 1 << 20  # of a head
_EPSILON = 1e-6
_THETA = 10_000.0
_COLOURS = 255
# Where config.json says nothing; source: transformers' Qwen2_5_VLVisionConfig.
_DEFAULTS = {
    "depth": 32, "hidden_size": 3584, "intermediate_size": 3420, "num_heads": 16, "patch_size": 14,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
}  # fmt: skip


@dataclass(frozen=True)
class Qwen25Vision(VisionEncoder):
    """Patches attend within windows, and to all in some layers; those of each small square become one token.

    The patches of a square lie beside each other, and the squares in the order of the picture's rows.
    """

    prefix: str
    inner_size: int
    intermediate_size: int
    num_heads: int
    patch_size: int
    num_frames: int  # pictures of a video that one patch covers; a picture is taken as so many equal ones
    merge_size: int  # patches on a side of the squares
    window_size: int  # squares on a side of a window
    full_layers: tuple[int, ...]  # those whose patches attend to all

    uses_mrope: ClassVar[bool] = True

    @classmethod
    def read(cls, config: JsonFile, tensor_names: Set[str], hidden_size: int) -> Qwen25Vision | None:
        """Reads `config.json` of a folder; None where it has no tensors of an encoder. Raises ModelError."""
        prefixes = [name.removesuffix(_FIRST) for name in tensor_names if name.endswith(_FIRST)]
        vision = config.table("vision_config")
        if vision is None or not prefixes:
            return None
        vision = vision.with_defaults(_DEFAULTS)
        if vision.text("hidden_act") not in (None, "silu"):
            raise vision.error("hidden_act", 'of this architecture it must be "silu"')
        if vision.integer("in_channels", least=1) not in (None, 3):
            raise vision.error("in_channels", "pictures have 3")
        inner, heads, patch, merge = (
            vision.required_integer(name, least=1, most=_MOST)
            for name in ("hidden_size", "num_heads", "patch_size", "spatial_merge_size")
        )
        if inner % (4 * heads):
            raise vision.error("num_heads", f"hidden_size ({inner}) must be a multiple of 4 times as many")
        if vision.integer("out_hidden_size", least=1) not in (None, hidden_size):
            raise vision.error("out_hidden_size", f"it must be the hidden_size of the text model ({hidden_size})")
        depth = vision.required_integer("depth", least=1, most=_MOST)
        full = vision.value("fullatt_block_indexes")
        if not isinstance(full, list) or any(not isinstance(each, int) for each in full):
            raise vision.error("fullatt_block_indexes", "it must be a list of integers")
        window = vision.required_integer("window_size", least=1, most=_MOST) // merge // patch
        if window < 1:
            raise vision.error("window_size", f"it must be at least {merge * patch}")
        return cls(
            0, 0, _BLOCK, depth, hidden_size, False, prefixes[0], inner,
            vision.required_integer("intermediate_size", least=1, most=_MOST), heads, patch,
            vision.required_integer("temporal_patch_size", least=1, most=_MOST), merge, window, tuple(full),
        )  # fmt: skip

    def buckets(self, max_model_len: int) -> tuple[int, ...]:
        """As `VisionEncoder.buckets`; a picture has fewer tokens than a sequence."""
        smaller = [bucket for bucket in _BUCKETS if bucket < max_model_len]
        return (*smaller, min(_BUCKETS[len(smaller)], max_model_len)) if len(smaller) < len(_BUCKETS) else _BUCKETS

    def pixels_shape(self, bucket: int) -> tuple[int, ...]:
        return bucket * self.merge_size**2, self.patch_size, self.patch_size, 3

    def inner_shape(self, bucket: int) -> tuple[int, int]:
        return bucket * self.merge_size**2, self.inner_size

    def leaves(self) -> tuple[Leaf, ...]:
        inner, feeding, patch = self.inner_size, self.intermediate_size, self.patch_size
        merged = inner * self.merge_size**2

        def single(leaf: str, shape: tuple[int, ...], tensor: str) -> Leaf:
            part = Part(shape, {"safetensors": Stored(self.prefix + tensor)})
            return Leaf(_LEAF + leaf, LeafKind.VECTOR, (part,), is_per_layer=False, is_exact=True)

        def layered(leaf: str, shape: tuple[int, ...], *tensors: str) -> Leaf:
            parts = tuple(
                Part(shape, {"safetensors": Stored(f"{self.prefix}blocks.{{layer}}.{tensor}")}) for tensor in tensors
            )
            return Leaf(_LEAF + leaf, LeafKind.VECTOR, parts, layers=tuple(range(self.num_layers)), is_exact=True)

        return (
            single("patch", (inner, 3, self.num_frames, patch, patch), _FIRST),
            layered("norm1", (inner,), "norm1.weight"),
            layered("qkv", (3 * inner, inner), "attn.qkv.weight"),
            layered("qkv_bias", (3 * inner,), "attn.qkv.bias"),
            layered("out", (inner, inner), "attn.proj.weight"),
            layered("out_bias", (inner,), "attn.proj.bias"),
            layered("norm2", (inner,), "norm2.weight"),
            layered("gate_up", (feeding, inner), "mlp.gate_proj.weight", "mlp.up_proj.weight"),
            layered("gate_up_bias", (feeding,), "mlp.gate_proj.bias", "mlp.up_proj.bias"),
            layered("down", (inner, feeding), "mlp.down_proj.weight"),
            layered("down_bias", (inner,), "mlp.down_proj.bias"),
            single("last_norm", (inner,), "merger.ln_q.weight"),
            single("merger", (merged, merged), "merger.mlp.0.weight"),
            single("merger_bias", (merged,), "merger.mlp.0.bias"),
            single("projection", (self.hidden_size, merged), "merger.mlp.2.weight"),
            single("projection_bias", (self.hidden_size,), "merger.mlp.2.bias"),
        )

    def begin(self, params: Params, pixels: jax.Array, grid: jax.Array) -> jax.Array:
        mean, deviation = (np.array(values, np.float32) for values in (CLIP_MEAN, CLIP_STD))
        colours = ((pixels.astype(jnp.float32) / _COLOURS) - mean) / deviation
        # A leaf is the tensor [inner, colour, frame, row, column] with all axes reversed.
        weights = jnp.sum(params[f"{_LEAF}patch"][0], axis=2).transpose(1, 0, 2, 3)
        embedded: jax.Array = colours.reshape(len(pixels), -1) @ weights.reshape(-1, self.inner_size)
        return embedded

    def layer(self, params: Params, x: jax.Array, grid: jax.Array, index: jax.Array) -> jax.Array:
        def of(name: str) -> jax.Array:
            leaf: jax.Array = lax.dynamic_index_in_dim(params[_LEAF + name], index, keepdims=False)
            return leaf

        normed = _rms_norm(x, of("norm1"))
        qkv = (normed @ of("qkv") + of("qkv_bias")).reshape(len(x), 3, self.num_heads, -1)
        x = x + self._attended(qkv, grid, index) @ of("out") + of("out_bias")
        gate, up = jnp.split(_rms_norm(x, of("norm2")) @ of("gate_up") + of("gate_up_bias"), 2, axis=-1)
        return x + (jax.nn.silu(gate) * up) @ of("down") + of("down_bias")

    def end(self, params: Params, x: jax.Array) -> jax.Array:
        squares = _rms_norm(x, params[f"{_LEAF}last_norm"][0]).reshape(len(x) // self.merge_size**2, -1)
        merged = squares @ params[f"{_LEAF}merger"][0] + params[f"{_LEAF}merger_bias"][0]
        merged = jax.nn.gelu(merged, approximate=False)
        projected: jax.Array = merged @ params[f"{_LEAF}projection"][0] + params[f"{_LEAF}projection_bias"][0]
        return projected

    def _attended(self, qkv: jax.Array, grid: jax.Array, index: jax.Array) -> jax.Array:
        """Softmax attention of [num_patches, 3, num_heads, size], some queries at a time."""
        num_patches, _, heads, size = qkv.shape
        merge = self.merge_size
        square, within = jnp.divmod(jnp.arange(num_patches), merge**2)
        row, column = square // grid[1], square % grid[1]
        window = (row // self.window_size) * num_patches + column // self.window_size
        is_real = row < grid[0]
        is_full = jnp.isin(index, np.array(self.full_layers, np.int32))

        inverse = 1.0 / _THETA ** (np.arange(0, size // 2, 2, dtype=np.float32) / (size // 2))
        places = (row * merge + within // merge, column * merge + within % merge)
        angles = jnp.concatenate([place[:, None].astype(jnp.float32) * inverse for place in places], axis=-1)[:, None]
        q, k = (_rotated(qkv[:, at], angles) for at in (0, 1))
        keys, values = k.transpose(1, 0, 2), qkv[:, 2].transpose(1, 0, 2)

        width = max(1, min(num_patches, _SCORES_AT_ONCE // num_patches))
        num_blocks = -(-num_patches // width)
        padding = num_blocks * width - num_patches
        blocks = jnp.pad(q * size**-0.5, ((0, padding), (0, 0), (0, 0))).reshape(num_blocks, width, heads, size)
        windows = jnp.pad(window, (0, padding)).reshape(num_blocks, width)

        def attend(block: tuple[jax.Array, jax.Array]) -> jax.Array:
            queries, its_windows = block
            sees = is_real[None] & (is_full | (its_windows[:, None] == window[None]))
            # A padding query may see nothing; the least finite number keeps it finite.
            scores = jnp.where(sees, jnp.einsum("qhd,hkd->hqk", queries, keys), jnp.finfo(jnp.float32).min)
            return jnp.einsum("hqk,hkd->qhd", jax.nn.softmax(scores, axis=-1), values)

        attended: jax.Array = lax.map(attend, (blocks, windows))
        return attended.reshape(num_blocks * width, -1)[:num_patches]


def _rotated(heads: jax.Array, angles: jax.Array) -> jax.Array:
    """[num_patches, num_heads, size], rotated by [num_patches, 1, size / 2]."""
    first, second = jnp.split(heads, 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _rms_norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + _EPSILON) * weight
