"""The pictures of Mistral 3 (Mistral AI, 2025): the encoder of Pixtral (Agrawal et al., "Pixtral 12B", 2024)."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from engine.interface.types import CLIP_MEAN, CLIP_STD
from engine.models.encoders.patch_vision import (
    BLOCK,
    PREFIX,
    PatchVision,
    attend,
    of_layer,
    rms_norm,
    rotated,
    single_leaf,
)
from engine.models.encoders.picture_tensors import prefixes_of
from engine.models.encoders.siglip import ACTIVATIONS, read_activation
from engine.models.encoders.vision_encoder import MAX_SIZE
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf

_FIRST = "patch_conv.weight"  # the first tensor of the encoder
_PROJECTOR = "multi_modal_projector."
_PROJECTION = f"{_PROJECTOR}linear_1.weight"
_LAYERS = "transformer.layers"
_EPSILON = 1e-5
_THETA = 10_000.0
_LAST_LAYER = -1
_COLOURS = 255
# Where config.json says nothing; source: transformers' Mistral3Config and PixtralVisionConfig.
_DEFAULTS: dict[str, Any] = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "patch_size": 16, "image_size": 1024,
}  # fmt: skip
_MERGE_SIZE = 2


@dataclass(frozen=True)
class PixtralVision(PatchVision):
    """Gated blocks and RMS norms without biases; rows and columns turn every second pair of features each."""

    projector_prefix: str
    max_tokens: int  # of a picture of the largest size for which the encoder was trained
    theta: float
    activation: str
    projector_activation: str
    projector_epsilon: float
    has_projector_bias: bool

    largest = (128, 512, 2048, 4096)

    @classmethod
    def read(cls, config: JsonFile, tensor_names: Set[str], hidden_size: int, epsilon: float) -> PixtralVision | None:
        """Reads `config.json` of a folder; None where it has no tensors of an encoder. Raises ModelError.

        Args:
            epsilon: of the norms of the text model.
        """
        prefixes = prefixes_of(config, tensor_names, (_FIRST, _PROJECTION))
        if prefixes is None:
            return None
        vision = (config.table("vision_config") or JsonFile(config.path, {})).with_defaults(_DEFAULTS)
        if vision.text("model_type") not in (None, "pixtral"):
            raise vision.error("model_type", 'of this architecture it must be "pixtral"')
        inner, feeding, num_layers, heads, patch, image = (
            vision.required_integer(name, least=1, most=MAX_SIZE) for name in _DEFAULTS
        )
        if inner % (4 * heads):
            raise vision.error("num_attention_heads", f"hidden_size ({inner}) must be a multiple of 4 times as many")
        if vision.integer("head_dim", least=1) not in (None, inner // heads):
            raise vision.error("head_dim", f"it must be hidden_size divided by the heads ({inner // heads})")
        if vision.integer("num_channels", least=1) not in (None, 3):
            raise vision.error("num_channels", "pictures have 3")
        if config.value("vision_feature_layer") not in (None, _LAST_LAYER):
            raise config.error("vision_feature_layer", f"it must be {_LAST_LAYER}, the last layer")
        merge = config.integer("spatial_merge_size", least=1, most=MAX_SIZE) or _MERGE_SIZE
        side = max(image // (patch * merge), 1)
        return cls(
            height=0, width=0, num_tokens=BLOCK, num_layers=num_layers, hidden_size=hidden_size, sees_both_ways=False,
            prefix=prefixes[0], inner_size=inner, intermediate_size=feeding, num_heads=heads, patch_size=patch,
            merge_size=merge, projector_prefix=prefixes[1] + _PROJECTOR, max_tokens=min(side**2, cls.largest[-1]),
            theta=_read_theta(vision), activation=read_activation(vision, "hidden_act", "gelu"),
            projector_activation=read_activation(config, "projector_hidden_act", "gelu"), projector_epsilon=epsilon,
            has_projector_bias=config.flag("multimodal_projector_bias") is True,
        )  # fmt: skip

    def buckets(self, max_model_len: int) -> tuple[int, ...]:
        """As `VisionEncoder.buckets`, up to the largest picture."""
        return super().buckets(min(max_model_len, self.max_tokens))

    def leaves(self) -> tuple[Leaf, ...]:
        inner, feeding, merged, hidden = self.inner_size, self.intermediate_size, self.merged_size, self.hidden_size
        projections = {"projection1": ("linear_1", inner), "projection2": ("linear_2", hidden)}
        of_projector = [
            *(self._of_projector(leaf, (hidden, size), f"{name}.weight") for leaf, (name, size) in projections.items()),
            *(self._of_projector(f"{leaf}_bias", (hidden,), f"{name}.bias") for leaf, (name, _) in projections.items()),
        ]
        return (
            self.single("patch", (inner, 3, self.patch_size, self.patch_size), _FIRST),
            self.single("first_norm", (inner,), "ln_pre.weight"),
            self.layered("qkv", (inner, inner), *(f"attention.{kind}_proj.weight" for kind in "qkv"), where=_LAYERS),
            self.layered("out", (inner, inner), "attention.o_proj.weight", where=_LAYERS),
            self.layered("norm1", (inner,), "attention_norm.weight", where=_LAYERS),
            self.layered("norm2", (inner,), "ffn_norm.weight", where=_LAYERS),
            self.layered(
                "gate_up", (feeding, inner), "feed_forward.gate_proj.weight", "feed_forward.up_proj.weight",
                where=_LAYERS,
            ),
            self.layered("down", (inner, feeding), "feed_forward.down_proj.weight", where=_LAYERS),
            self._of_projector("last_norm", (inner,), "norm.weight"),
            self._of_projector("merger", (inner, merged), "patch_merger.merging_layer.weight"),
            *(of_projector if self.has_projector_bias else of_projector[: len(projections)]),
        )  # fmt: skip

    def begin(self, params: Params, pixels: jax.Array, grid: jax.Array) -> jax.Array:
        mean, deviation = (np.array(each, np.float32) for each in (CLIP_MEAN, CLIP_STD))
        colours = ((pixels.astype(jnp.float32) / _COLOURS) - mean) / deviation
        # A leaf is the tensor [inner, colour, row, column] with all axes reversed.
        weights = params[f"{PREFIX}patch"][0].transpose(1, 0, 2, 3).reshape(-1, self.inner_size)
        return rms_norm(colours.reshape(len(pixels), -1) @ weights, params[f"{PREFIX}first_norm"][0], _EPSILON)

    def layer(self, params: Params, x: jax.Array, grid: jax.Array, index: jax.Array) -> jax.Array:
        of = of_layer(params, index)
        x = x + self._attended(rms_norm(x, of("norm1"), _EPSILON) @ of("qkv"), grid) @ of("out")
        product = rms_norm(x, of("norm2"), _EPSILON) @ of("gate_up")
        gate, up = product[:, : self.intermediate_size], product[:, self.intermediate_size :]
        return x + (ACTIVATIONS[self.activation](gate) * up) @ of("down")

    def _attended(self, qkv: jax.Array, grid: jax.Array) -> jax.Array:
        """What the product behind attention reads; pairs of features are rotated by rows and by columns in turn."""
        q, k, v = (each.reshape(len(qkv), self.num_heads, -1) for each in jnp.split(qkv, 3, axis=-1))
        row, column = self.places(len(qkv), grid)
        size = q.shape[-1]
        inverse = 1.0 / self.theta ** (np.arange(0, size, 2, dtype=np.float32) / size)
        by_row, by_column = row[:, None] * inverse[::2], column[:, None] * inverse[1::2]
        angles = jnp.concatenate([by_row, by_column], axis=-1)[:, None]
        return attend(rotated(q, angles) * size**-0.5, rotated(k, angles), v, row < grid[0] * self.merge_size)

    def end(self, params: Params, x: jax.Array) -> jax.Array:
        def projected(x: jax.Array, leaf: str) -> jax.Array:
            product: jax.Array = x @ params[PREFIX + leaf][0]
            return product + params[f"{PREFIX}{leaf}_bias"][0] if self.has_projector_bias else product

        normed = rms_norm(x, params[f"{PREFIX}last_norm"][0], self.projector_epsilon)
        # The features of a square are those of one patch after another here, and one feature of all patches there.
        squares = normed.reshape(-1, self.merge_size**2, self.inner_size).transpose(0, 2, 1)
        merged = squares.reshape(-1, self.merged_size) @ params[f"{PREFIX}merger"][0]
        activated = ACTIVATIONS[self.projector_activation](projected(merged, "projection1"))
        return projected(activated, "projection2")

    def _of_projector(self, leaf: str, shape: tuple[int, ...], tensor: str) -> Leaf:
        return single_leaf(leaf, shape, self.projector_prefix + tensor)


def _read_theta(vision: JsonFile) -> float:
    """The base of the rotation; raises ModelError."""
    theta = vision.positive_number("rope_theta") or _THETA
    table = vision.table("rope_parameters") or vision.table("rope_scaling")
    if table is None:
        return theta
    if table.text("rope_type") not in (None, "default", "axial"):
        raise table.error("rope_type", "the patches of pictures are rotated without scaling")
    return table.positive_number("rope_theta") or theta
