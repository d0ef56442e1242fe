"""The layers of SigLIP (Zhai et al., "Sigmoid Loss for Language Image Pre-Training", 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from engine.backends.base.operands import Activation
from engine.models.encoders.layer_products import PREFIX, LayerProducts, biased_leaves, norm_leaves, vector_leaf
from engine.models.encoders.vision_encoder import MAX_SIZE, Colours
from engine.weights.formats.fields import Fields
from engine.weights.layout import Params
from engine.weights.leaf import Leaf

ACTIVATIONS = {
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu": Activation.GELU_ERF,
    "quick_gelu": Activation.QUICK_GELU,
    "silu": Activation.SILU,
}


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
        """All parameters; the names of their tensors in a folder begin with a prefix."""
        hidden, patch = self.hidden_size, self.patch_size
        return (
            vector_leaf("patch", (hidden, 3, patch, patch), f"{prefix}embeddings.patch_embedding.weight"),
            vector_leaf("patch_bias", (hidden,), f"{prefix}embeddings.patch_embedding.bias"),
            vector_leaf("position", (self.num_patches, hidden), f"{prefix}embeddings.position_embedding.weight"),
            *self.layer_leaves(prefix),
            *norm_leaves("last_norm", hidden, f"{prefix}post_layernorm"),
        )

    def layer_leaves(self, prefix: str) -> tuple[Leaf, ...]:
        """Those of the layers, which CLIP's towers have too."""
        hidden, inner, layers = self.hidden_size, self.intermediate_size, tuple(range(self.num_layers))
        of_layer = f"{prefix}encoder.layers.{{layer}}."
        of_attention = (f"{of_layer}self_attn.{kind}_proj" for kind in "qkv")
        return (
            *norm_leaves("norm1", hidden, f"{of_layer}layer_norm1", layers),
            *biased_leaves("qkv", (hidden, hidden), *of_attention, layers=layers),
            *biased_leaves("out", (hidden, hidden), f"{of_layer}self_attn.out_proj", layers=layers),
            *norm_leaves("norm2", hidden, f"{of_layer}layer_norm2", layers),
            *biased_leaves("up", (inner, hidden), f"{of_layer}mlp.fc1", layers=layers, pads_outputs=True),
            *biased_leaves("down", (hidden, inner), f"{of_layer}mlp.fc2", layers=layers, pads_inputs=True),
        )

    def begin(self, params: Params, pixels: jax.Array, colours: Colours) -> jax.Array:
        """The embeddings of patches, float32[num_patches, hidden], of uint8[image_size, image_size, 3]."""
        side, patch = self.num_patches_a_side, self.patch_size
        normalized = colours.normalized(pixels[: side * patch, : side * patch])
        patches = normalized.reshape(side, patch, side, patch, 3).transpose(0, 2, 1, 3, 4).reshape(side * side, -1)
        # A leaf is the tensor [hidden, colour, row, column] with all axes reversed.
        weights = params[f"{PREFIX}patch"][0].transpose(1, 0, 2, 3).reshape(-1, self.hidden_size)
        position = params[f"{PREFIX}position"][0].T
        embedded: jax.Array = patches @ weights + params[f"{PREFIX}patch_bias"][0] + position
        return embedded

    def layer(self, x: jax.Array, products: LayerProducts) -> jax.Array:
        """One layer over [num_patches, hidden]; each patch attends to all."""
        qkv = products.product(x, "qkv", products.norm("norm1", self.epsilon))
        x = products.add_product(x, products.attend(qkv, self.num_heads), "out")
        inner = products.product(x, "up", products.norm("norm2", self.epsilon), ACTIVATIONS[self.activation])
        return products.add_product(x, inner, "down")

    def end(self, params: Params, x: jax.Array) -> jax.Array:
        """The last norm."""
        return layer_norm(x, params[f"{PREFIX}last_norm"][0], params[f"{PREFIX}last_norm_bias"][0], self.epsilon)


def read_activation(config: Fields, name: str, default: str) -> str:
    """The name of an activation, a key of ACTIVATIONS; raises ModelError."""
    activation = config.text(name) or default
    if activation not in ACTIVATIONS:
        raise config.error(name, f"it must be one of {', '.join(ACTIVATIONS)}")
    return activation


def activated(x: jax.Array, activation: Activation) -> jax.Array:
    """What a product's activation does, outside a product."""
    match activation:
        case Activation.GELU_TANH:
            return jax.nn.gelu(x, approximate=True)
        case Activation.GELU_ERF:
            return jax.nn.gelu(x, approximate=False)
        case Activation.QUICK_GELU:
            return x * jax.nn.sigmoid(1.702 * x)
        case Activation.SILU:
            return jax.nn.silu(x)
    raise ValueError(f"{activation!r} is no activation of encoders")


def layer_norm(x: jax.Array, weight: jax.Array, bias: jax.Array, epsilon: float) -> jax.Array:
    """Ba, Kiros and Hinton, "Layer Normalization", 2016."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + epsilon) * weight + bias
