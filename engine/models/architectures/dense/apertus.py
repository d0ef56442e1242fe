"""The Apertus architecture (Apertus team, "Apertus: Democratizing Open and Compliant LLMs", 2025)."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from engine.backends.base.backend import Products
from engine.backends.base.norms import of_layer
from engine.backends.base.operands import Norm
from engine.backends.base.token_layout import TokenLayout
from engine.models.parts import folder_config
from engine.models.parts.decoder import Names, QueryKeyNorm
from engine.models.parts.plain_mlp import PlainMlpDecoder
from engine.weights.formats.gguf_tensors import field_name
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Stored
from engine.weights.tensors import AsVector

# Where config.json says nothing; source: transformers' ApertusConfig.
_THETA = 12_000_000.0
_DEFAULTS: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "llama3", "rope_theta": _THETA, "factor": 8.0, "original_max_position_embeddings": 8192,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    }
}  # fmt: skip
_CONSTANTS = ("alpha_p", "alpha_n", "beta", "eps")


@dataclass(frozen=True)
class Apertus(PlainMlpDecoder):
    """Norms of each head of queries and keys, and feed-forward blocks of xIELU without gates.

    xIELU: Huang and Schlag, "Deriving Activation Functions Using Integration", 2024; its constants are of each layer.
    """

    norms: ClassVar[Mapping[str, Names]] = {
        "attention_norm": ("attention_layernorm", "attn_norm"),
        "mlp_norm": ("feedforward_layernorm", "ffn_norm"),
    }
    query_key_norm = QueryKeyNorm.HEAD

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        if not {"rope_parameters", "rope_scaling", "rope_theta"} & set(config.names):
            config = config.with_defaults(_DEFAULTS)
        usual = folder_config.read_decoder(
            config, tensor_names, "apertus", default_theta=_THETA, hidden_act="xielu", default_epsilon=1e-5
        )
        return cls(usual)

    def feed_forward_leaves(self) -> list[Leaf]:
        return [*super().feed_forward_leaves(), *map(_constant_leaf, _CONSTANTS)]

    def mixed(
        self, x: jax.Array, norm: Norm | None, params: Params, index: jax.Array, layout: TokenLayout,
        products: Products,
    ) -> jax.Array:  # fmt: skip
        up = products.norm_product(x, norm, params["up"], index, layout, bias=params.get("up_bias"))
        alpha_p, alpha_n, beta, eps = (of_layer(params[f"xielu_{name}"], index) for name in _CONSTANTS)
        wide = up.astype(jnp.float32)
        positive = jax.nn.softplus(alpha_p) * wide * wide
        negative = (jnp.expm1(jnp.minimum(wide, eps)) - wide) * (beta + jax.nn.softplus(alpha_n))
        return (jnp.where(wide > 0, positive, negative) + beta * wide).astype(up.dtype)


def _constant_leaf(name: str) -> Leaf:
    """One of the constants of xIELU, which GGUF files have in a field."""
    stored = {
        "safetensors": Stored(f"model.layers.{{layer}}.mlp.act_fn.{name}", AsVector),
        "gguf": Stored(field_name("xielu." + name)),
    }
    return Leaf(f"xielu_{name}", LeafKind.VECTOR, (Part((1,), stored),), is_exact=True)
