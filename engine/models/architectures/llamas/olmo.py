"""The first OLMo architecture (Groeneveld et al., "OLMo", 2024)."""

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import jax.numpy as jnp

from engine.backends.base.operands import Norm, NormKind
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Decoder, Names
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf

_EPSILON = 1e-5  # of all models; configurations do not state it


@dataclass(frozen=True)
class Olmo(Decoder):
    """Llama's layers with LayerNorms that have no weights."""

    takes_adapters = False  # what they add to queries, keys and values would be clamped too
    is_paired_in_gguf = True
    norm_kind = NormKind.LAYER
    weightless_norms: ClassVar[frozenset[str]] = frozenset({"attention_norm", "mlp_norm", "output_norm"})

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = folder_config.read_decoder(config, tensor_names, "olmo")
        limit = config.positive_number("clip_qkv") or 0.0
        return cls(replace(usual, rms_norm_eps=_EPSILON, qkv_limit=limit))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        usual = gguf_config.read_decoder(file, epsilon_key="attention.layer_norm_epsilon")
        return cls(replace(usual, qkv_limit=gguf_config.read_multiplier(file, "attention.clamp_kqv", 0.0)))

    def norm_leaves(self, leaf: str, size: int, names: Names, *, is_per_layer: bool = True) -> list[Leaf]:
        """None: files have no weights of norms."""
        return []

    def norm(self, params: Params, leaf: str) -> Norm | None:
        if leaf not in self.weightless_norms:
            return None
        num_layers = 1 if leaf == "output_norm" else self.config.num_layers
        weights = jnp.ones((num_layers, self.config.hidden_size), jnp.float32)
        return Norm(weights, self.config.rms_norm_eps, self.norm_kind)
