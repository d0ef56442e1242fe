"""The Llama architecture (Touvron et al., "LLaMA", 2023), from Llama 2 to 3.3, and SmolLM2."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Self

from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Decoder
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile


@dataclass(frozen=True)
class Llama(Decoder):
    """A norm before each block."""

    is_paired_in_gguf = True

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        """Reads the fields of transformers' class of this architecture."""
        return cls(folder_config.read_decoder(config, tensor_names, "llama"))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        """Reads the fields of the architecture "llama", which files of Mistral's models name too."""
        return cls(gguf_config.read_decoder(file))
