"""The Jais 2 architecture (Inception and MBZUAI, "Jais 2", 2025)."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Self

from engine.backends.base.operands import NormKind
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.plain_mlp import PlainMlpDecoder
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

_BIASES = {"attention_bias": True, "mlp_bias": True}  # where config.json says nothing, as transformers' Jais2Config


@dataclass(frozen=True)
class Jais2(PlainMlpDecoder):
    """Llama's attention with LayerNorms and biases, and feed-forward blocks of squared ReLU without gates."""

    norm_kind = NormKind.LAYER
    has_norm_bias = True
    squares_relu = True

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = folder_config.read_decoder(
            config.with_defaults(_BIASES), tensor_names, "jais2", hidden_act="relu2", epsilon_key="layer_norm_eps",
            default_epsilon=1e-5,
        )  # fmt: skip
        return cls(usual)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(gguf_config.read_decoder(file, epsilon_key="attention.layer_norm_epsilon"))
