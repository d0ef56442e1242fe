"""The pictures of Gemma 4 (Gemma Team, "Gemma 4", 2026): patches rotated by columns and rows, means over squares."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from engine.models.encoders.layer_products import PREFIX, LayerProducts, product_leaf, vector_leaf
from engine.models.encoders.patch_vision import BLOCK, PatchVision, read_theta, rotated
from engine.models.encoders.picture_tensors import prefixes_of
from engine.models.encoders.vision_encoder import MAX_SIZE, Colours
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Stored
from engine.weights.tensors import AsVector

_FIRST = "patch_embedder.input_proj.weight"  # the first tensor of the tower
_PROJECTION = "embed_vision.embedding_projection.weight"
_LAYERS = "encoder.layers"
_THETA = 100.0
_COLOURS = Colours((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
# Where config.json says nothing; source: transformers' Gemma4VisionConfig.
_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16, "num_attention_heads": 12,
    "head_dim": 64, "patch_size": 16, "pooling_kernel_size": 3, "position_embedding_size": 10_240,
}  # fmt: skip
_PRODUCTS = {
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip
_BOUNDS = ("input_min", "input_max", "output_min", "output_max")
_STANDARDS = ("std_bias", "std_scale")
_NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")


@dataclass(frozen=True)
class Gemma4Vision(PatchVision):
    """Each patch attends to all; the mean of a square becomes a token."""

    head_dim: int
    num_places: int  # rows and columns that have an embedding
    theta: float
    epsilon: float
    is_clipped: bool  # whether inputs and outputs of the layers' products have bounds
    is_standardized: bool  # whether tokens are shifted and scaled by stored numbers
    projection: str  # the name of the tensor behind the tower

    largest = (70, 280, 1120)

    @classmethod
    def read(
        cls, config: JsonFile, tensor_names: Set[str], hidden_size: int, *, sees_both_ways: bool = False
    ) -> Gemma4Vision | None:
        """Reads `config.json` of a folder; None where it has no tensors of an encoder. Raises ModelError."""
        vision = config.table("vision_config")
        prefixes = None if vision is None else prefixes_of(config, tensor_names, (_FIRST, _PROJECTION))
        if vision is None or prefixes is None:
            return None
        vision = vision.with_defaults(_DEFAULTS)
        if vision.text("hidden_activation") not in (None, "gelu_pytorch_tanh"):
            raise vision.error("hidden_activation", 'of this architecture it must be "gelu_pytorch_tanh"')
        if vision.flag("attention_bias"):
            raise vision.error("attention_bias", "biases are not served")
        inner, feeding, depth, heads, head_dim, patch, merge, places = (
            vision.required_integer(name, least=1, most=MAX_SIZE) for name in _DEFAULTS
        )
        if vision.integer("num_key_value_heads", least=1) not in (None, heads):
            raise vision.error("num_key_value_heads", f"it must be that of heads, {heads}")
        if head_dim % 4:
            raise vision.error("head_dim", "it must be a multiple of 4")
        return cls(
            height=0, width=0, num_tokens=BLOCK, num_layers=depth, hidden_size=hidden_size,
            sees_both_ways=sees_both_ways,
            prefix=prefixes[0], inner_size=inner, intermediate_size=feeding, num_heads=heads, patch_size=patch,
            merge_size=merge, head_dim=head_dim, num_places=places, theta=read_theta(vision, _THETA),
            epsilon=vision.positive_number("rms_norm_eps") or 1e-6,
            is_clipped=vision.flag("use_clipped_linears") is True,
            is_standardized=vision.flag("standardize") is True,
            projection=prefixes[1] + _PROJECTION, colours=Colours.read(config, _COLOURS),
        )  # fmt: skip

    def leaves(self) -> tuple[Leaf, ...]:
        inner, feeding, heads = self.inner_size, self.intermediate_size, self.num_heads * self.head_dim
        shapes = dict.fromkeys(("q", "k", "v"), (heads, inner))
        shapes |= {"o": (inner, heads), "gate": (feeding, inner), "up": (feeding, inner), "down": (inner, feeding)}
        layers, of_layer = self.every_layer, f"{self.prefix}{_LAYERS}.{{layer}}."
        return (
            self.single("patch", (inner, 3 * self.patch_size**2), _FIRST),
            self.single("place", (2, self.num_places, inner), "patch_embedder.position_embedding_table"),
            *(
                product_leaf(
                    name,
                    shape,
                    f"{of_layer}{_PRODUCTS[name]}.linear.weight",
                    layers=layers,
                    pads_outputs=name in ("gate", "up"),
                    pads_inputs=name == "down",
                )
                for name, shape in shapes.items()
            ),
            *(
                vector_leaf(f"{kind}_norm", (self.head_dim,), f"{of_layer}self_attn.{kind}_norm.weight", layers=layers)
                for kind in "qk"
            ),
            *(vector_leaf(name, (inner,), f"{of_layer}{name}.weight", layers=layers) for name in _NORMS),
            *((self._bounds_leaf(),) if self.is_clipped else ()),
            *(self.single(name, (inner,), name) for name in _STANDARDS if self.is_standardized),
            vector_leaf("projection", (self.hidden_size, inner), self.projection),
        )

    def _bounds_leaf(self) -> Leaf:
        """Four numbers of each product of a layer."""
        parts = tuple(
            Part((1,), {"safetensors": Stored(f"{self.prefix}{_LAYERS}.{{layer}}.{name}.{bound}", AsVector)})
            for name in _PRODUCTS.values()
            for bound in _BOUNDS
        )
        return Leaf(f"{PREFIX}bounds", LeafKind.VECTOR, parts, layers=self.every_layer, is_exact=True)

    def begin(self, params: Params, pixels: jax.Array, grid: jax.Array) -> jax.Array:
        colours = 2 * (self.colours.normalized(pixels) - 0.5)
        x = colours.reshape(len(pixels), -1) @ params[f"{PREFIX}patch"][0]
        # A leaf is the tensor [column or row, place, inner] with all axes reversed.
        table = params[f"{PREFIX}place"][0].transpose(2, 1, 0)
        row, column = (jnp.minimum(each, self.num_places - 1) for each in self.places(len(pixels), grid))
        made: jax.Array = x + table[0, column] + table[1, row]
        return made

    def layer(self, x: jax.Array, grid: jax.Array, products: LayerProducts) -> jax.Array:
        def product(inputs: jax.Array, name: str) -> jax.Array:
            if not self.is_clipped:
                return products.product(inputs, name)
            first = len(_BOUNDS) * list(_PRODUCTS).index(name)
            low, high, least, most = products.of("bounds")[first : first + len(_BOUNDS)]
            return jnp.clip(products.product(jnp.clip(inputs, low, high), name), least, most)

        def norm(values: jax.Array, name: str) -> jax.Array:
            return _rms_norm(values, self.epsilon) * products.of(name)

        heads = [product(norm(x, "input_layernorm"), name) for name in "qkv"]
        attended = product(self._attended(heads, grid, products), "o")
        x = x + norm(attended, "post_attention_layernorm")
        inputs = norm(x, "pre_feedforward_layernorm")
        mixed = jax.nn.gelu(product(inputs, "gate"), approximate=True) * product(inputs, "up")
        return x + norm(product(mixed, "down"), "post_feedforward_layernorm")

    def _attended(self, joined: list[jax.Array], grid: jax.Array, products: LayerProducts) -> jax.Array:
        """What the product behind attention reads; half of a head is rotated by columns, the other half by rows."""
        q, k, v = (each.reshape(len(each), self.num_heads, self.head_dim) for each in joined)
        row, column = self.places(len(q), grid)
        half = self.head_dim // 2
        inverse = 1.0 / self.theta ** (np.arange(0, half, 2, dtype=np.float32) / half)
        angles = [(each[:, None].astype(jnp.float32) * inverse)[:, None] for each in (column, row)]

        def turned(heads: jax.Array, kind: str) -> jax.Array:
            normed = _rms_norm(heads, self.epsilon) * products.of(f"{kind}_norm")
            halves = jnp.split(normed, 2, axis=-1)
            return jnp.concatenate([rotated(*each) for each in zip(halves, angles, strict=True)], axis=-1)

        qkv = jnp.stack([turned(q, "q"), turned(k, "k"), _rms_norm(v, self.epsilon)], axis=1)
        return products.attend(qkv.reshape(len(q), -1), self.num_heads, scale=1.0)

    def end(self, x: jax.Array, grid: jax.Array, products: LayerProducts) -> jax.Array:
        params = products.params
        means = jnp.mean(x.reshape(-1, self.merge_size**2, self.inner_size), axis=1) * self.inner_size**0.5
        if self.is_standardized:
            means = (means - params[f"{PREFIX}std_bias"][0]) * params[f"{PREFIX}std_scale"][0]
        projected: jax.Array = _rms_norm(means, self.epsilon) @ params[f"{PREFIX}projection"][0]
        return projected


def _rms_norm(x: jax.Array, epsilon: float) -> jax.Array:
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon)
