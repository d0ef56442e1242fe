"""The layers of SigLIP (Zhai et al., "Sigmoid Loss for Language Image Pre-Training", 2023)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from engine.models.encoders.patch_vision import attend
from engine.models.encoders.vision_encoder import MAX_SIZE
from engine.weights.formats.fields import Fields
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Stored

_PIXELS = 127.5  # a colour of so much is 0, and one of 0 is -1
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu_pytorch_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "silu": jax.nn.silu,
}
_LEAF = "vision."  # of its leaves' names


@dataclass(frozen=True)
class Siglip:
    """The sizes of the tower; patches are in the order of the picture's rows."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    image_size: int
    patch_size: int
    epsilon: float
    activation: str

    @classmethod
    def read(cls, config: Fields) -> Siglip:
        """Reads the `vision_config` of a folder; raises ModelError."""
        hidden, heads = (
            config.required_integer(name, least=1, most=MAX_SIZE) for name in ("hidden_size", "num_attention_heads")
        )
        if hidden % heads:
            raise config.error("num_attention_heads", f"it must divide hidden_size ({hidden})")
        image, patch = (config.required_integer(name, least=1, most=MAX_SIZE) for name in ("image_size", "patch_size"))
        if config.integer("num_channels", least=1) not in (None, 3):
            raise config.error("num_channels", "pictures have 3")
        activation = read_activation(config, "hidden_act", "gelu_pytorch_tanh")
        return cls(
            hidden,
            config.required_integer("intermediate_size", least=1, most=MAX_SIZE),
            config.required_integer("num_hidden_layers", least=1, most=MAX_SIZE),
            heads,
            image,
            patch,
            config.positive_number("layer_norm_eps") or 1e-6,
            activation,
        )

    @property
    def num_patches_a_side(self) -> int:
        return self.image_size // self.patch_size

    @property
    def num_patches(self) -> int:
        return self.num_patches_a_side**2

    def leaves(self, prefix: str) -> tuple[Leaf, ...]:
        """All parameters, in float32; the names of their tensors in a folder begin with a prefix."""
        hidden, inner, patch = self.hidden_size, self.intermediate_size, self.patch_size

        def single(leaf: str, shape: tuple[int, ...], tensor: str) -> Leaf:
            part = Part(shape, {"safetensors": Stored(prefix + tensor)})
            return Leaf(_LEAF + leaf, LeafKind.VECTOR, (part,), is_per_layer=False, is_exact=True)

        def layered(leaf: str, shape: tuple[int, ...], *tensors: str) -> Leaf:
            parts = tuple(
                Part(shape, {"safetensors": Stored(f"{prefix}encoder.layers.{{layer}}.{tensor}")}) for tensor in tensors
            )
            layers = tuple(range(self.num_layers))
            return Leaf(_LEAF + leaf, LeafKind.VECTOR, parts, layers=layers, is_exact=True)

        of_attention = tuple(f"self_attn.{kind}_proj" for kind in "qkv")
        return (
            single("patch", (hidden, 3, patch, patch), "embeddings.patch_embedding.weight"),
            single("patch_bias", (hidden,), "embeddings.patch_embedding.bias"),
            single("position", (self.num_patches, hidden), "embeddings.position_embedding.weight"),
            layered("norm1", (hidden,), "layer_norm1.weight"),
            layered("norm1_bias", (hidden,), "layer_norm1.bias"),
            layered("qkv", (hidden, hidden), *(f"{name}.weight" for name in of_attention)),
            layered("qkv_bias", (hidden,), *(f"{name}.bias" for name in of_attention)),
            layered("out", (hidden, hidden), "self_attn.out_proj.weight"),
            layered("out_bias", (hidden,), "self_attn.out_proj.bias"),
            layered("norm2", (hidden,), "layer_norm2.weight"),
            layered("norm2_bias", (hidden,), "layer_norm2.bias"),
            layered("up", (inner, hidden), "mlp.fc1.weight"),
            layered("up_bias", (inner,), "mlp.fc1.bias"),
            layered("down", (hidden, inner), "mlp.fc2.weight"),
            layered("down_bias", (hidden,), "mlp.fc2.bias"),
            single("last_norm", (hidden,), "post_layernorm.weight"),
            single("last_norm_bias", (hidden,), "post_layernorm.bias"),
        )

    def begin(self, params: Params, pixels: jax.Array) -> jax.Array:
        """The embeddings of patches, float32[num_patches, hidden], of uint8[image_size, image_size, 3]."""
        side, patch = self.num_patches_a_side, self.patch_size
        colours = pixels[: side * patch, : side * patch].astype(jnp.float32) / _PIXELS - 1
        patches = colours.reshape(side, patch, side, patch, 3).transpose(0, 2, 1, 3, 4).reshape(side * side, -1)
        # A leaf is the tensor [hidden, colour, row, column] with all axes reversed.
        weights = params[f"{_LEAF}patch"][0].transpose(1, 0, 2, 3).reshape(-1, self.hidden_size)
        position = params[f"{_LEAF}position"][0].T
        embedded: jax.Array = patches @ weights + params[f"{_LEAF}patch_bias"][0] + position
        return embedded

    def layer(self, params: Params, x: jax.Array, index: jax.Array) -> jax.Array:
        """One layer over [num_patches, hidden]; each patch attends to all."""

        def of(name: str) -> jax.Array:
            leaf: jax.Array = lax.dynamic_index_in_dim(params[_LEAF + name], index, keepdims=False)
            return leaf

        normed = layer_norm(x, of("norm1"), of("norm1_bias"), self.epsilon)
        qkv = (normed @ of("qkv") + of("qkv_bias")).reshape(len(x), 3, self.num_heads, -1)
        attended = attend(qkv[:, 0] * qkv.shape[-1] ** -0.5, qkv[:, 1], qkv[:, 2])
        x = x + attended @ of("out") + of("out_bias")
        normed = layer_norm(x, of("norm2"), of("norm2_bias"), self.epsilon)
        inner = ACTIVATIONS[self.activation](normed @ of("up") + of("up_bias"))
        return x + inner @ of("down") + of("down_bias")

    def end(self, params: Params, x: jax.Array) -> jax.Array:
        """The last norm."""
        return layer_norm(x, params[f"{_LEAF}last_norm"][0], params[f"{_LEAF}last_norm_bias"][0], self.epsilon)


def read_activation(config: Fields, name: str, default: str) -> str:
    """The name of an activation, a key of ACTIVATIONS; raises ModelError."""
    activation = config.text(name) or default
    if activation not in ACTIVATIONS:
        raise config.error(name, f"it must be one of {', '.join(ACTIVATIONS)}")
    return activation


def layer_norm(x: jax.Array, weight: jax.Array, bias: jax.Array, epsilon: float) -> jax.Array:
    """Ba, Kiros and Hinton, "Layer Normalization", 2016."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + epsilon) * weight + bias
