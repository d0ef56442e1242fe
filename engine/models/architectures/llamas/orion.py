"""The Orion architecture (Chen et al., "Orion-14B", 2024)."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Self

from engine.backends.base.operands import NormKind
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Decoder
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile


@dataclass(frozen=True)
class Orion(Decoder):
    """Llama's layers with LayerNorms, whose epsilon a folder calls that of RMS norms."""

    norm_kind = NormKind.LAYER
    has_norm_bias = True

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        return cls(folder_config.read_decoder(config, tensor_names, "orion", default_epsilon=1e-5))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(gguf_config.read_decoder(file, epsilon_key="attention.layer_norm_epsilon"))
