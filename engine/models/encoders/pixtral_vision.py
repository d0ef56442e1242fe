"""The pictures of Mistral 3 (Mistral AI, 2025): the encoder of Pixtral (Agrawal et al., "Pixtral 12B", 2024)."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from engine.interface.types import CLIP_MEAN, CLIP_STD
from engine.models.encoders.layer_products import PREFIX, LayerProducts, product_leaf, vector_leaf
from engine.models.encoders.patch_vision import BLOCK, PatchVision, read_theta, rms_norm
from engine.models.encoders.picture_tensors import prefixes_of
from engine.models.encoders.siglip import ACTIVATIONS, activated, read_activation
from engine.models.encoders.vision_encoder import MAX_SIZE, Colours
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
            theta=read_theta(vision, _THETA), activation=read_activation(vision, "hidden_act", "gelu"),
            projector_activation=read_activation(config, "projector_hidden_act", "gelu"), projector_epsilon=epsilon,
            has_projector_bias=config.flag("multimodal_projector_bias") is True,
            colours=Colours.read(config, Colours(CLIP_MEAN, CLIP_STD)),
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
        layers, of_layer = self.every_layer, f"{self.prefix}{_LAYERS}.{{layer}}."
        of_attention = (f"{of_layer}attention.{kind}_proj.weight" for kind in "qkv")
        gated = (f"{of_layer}feed_forward.{kind}_proj.weight" for kind in ("gate", "up"))
        return (
            self.single("patch", (inner, 3, self.patch_size, self.patch_size), _FIRST),
            self.single("first_norm", (inner,), "ln_pre.weight"),
            product_leaf("qkv", (inner, inner), *of_attention, layers=layers),
            product_leaf("out", (inner, inner), f"{of_layer}attention.o_proj.weight", layers=layers),
            vector_leaf("norm1", (inner,), f"{of_layer}attention_norm.weight", layers=layers),
            vector_leaf("norm2", (inner,), f"{of_layer}ffn_norm.weight", layers=layers),
            product_leaf("gate_up", (feeding, inner), *gated, layers=layers, is_gated=True, pads_outputs=True),
            product_leaf(
                "down", (inner, feeding), f"{of_layer}feed_forward.down_proj.weight", layers=layers, pads_inputs=True
            ),
            self._of_projector("last_norm", (inner,), "norm.weight"),
            self._of_projector("merger", (inner, merged), "patch_merger.merging_layer.weight"),
            *(of_projector if self.has_projector_bias else of_projector[: len(projections)]),
        )

    def begin(self, params: Params, pixels: jax.Array, grid: jax.Array) -> jax.Array:
        colours = self.colours.normalized(pixels)
        # A leaf is the tensor [inner, colour, row, column] with all axes reversed.
        weights = params[f"{PREFIX}patch"][0].transpose(1, 0, 2, 3).reshape(-1, self.inner_size)
        return rms_norm(colours.reshape(len(pixels), -1) @ weights, params[f"{PREFIX}first_norm"][0], _EPSILON)

    def layer(self, x: jax.Array, grid: jax.Array, products: LayerProducts) -> jax.Array:
        qkv = products.product(x, "qkv", products.norm("norm1", _EPSILON))
        x = products.add_product(x, products.attend(qkv, self.num_heads, angles=self._angles(len(x), grid)), "out")
        norm, activation = products.norm("norm2", _EPSILON), ACTIVATIONS[self.activation]
        return products.add_product(x, products.product(x, "gate_up", norm, activation, is_gated=True), "down")

    def _angles(self, num_patches: int, grid: jax.Array) -> jax.Array:
        """Pairs of features are rotated by rows and by columns in turn."""
        row, column = self.places(num_patches, grid)
        size = self.inner_size // self.num_heads
        inverse = 1.0 / self.theta ** (np.arange(0, size, 2, dtype=np.float32) / size)
        return jnp.concatenate([row[:, None] * inverse[::2], column[:, None] * inverse[1::2]], axis=-1)

    def end(self, x: jax.Array, grid: jax.Array, products: LayerProducts) -> jax.Array:
        params = products.params

        def projected(x: jax.Array, leaf: str) -> jax.Array:
            product: jax.Array = x @ params[PREFIX + leaf][0]
            return product + params[f"{PREFIX}{leaf}_bias"][0] if self.has_projector_bias else product

        normed = rms_norm(x, params[f"{PREFIX}last_norm"][0], self.projector_epsilon)
        # The features of a square are those of one patch after another here, and one feature of all patches there.
        squares = normed.reshape(-1, self.merge_size**2, self.inner_size).transpose(0, 2, 1)
        merged = squares.reshape(-1, self.merged_size) @ params[f"{PREFIX}merger"][0]
        inner = activated(projected(merged, "projection1"), ACTIVATIONS[self.projector_activation])
        return projected(inner, "projection2")

    def _of_projector(self, leaf: str, shape: tuple[int, ...], tensor: str) -> Leaf:
        return vector_leaf(leaf, shape, self.projector_prefix + tensor)
