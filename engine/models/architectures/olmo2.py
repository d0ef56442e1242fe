"""The OLMo 2 architecture (OLMo team, "2 OLMo 2 Furious", 2024)."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import ClassVar, Self

from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Decoder, Names, QueryKeyNorm
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile


@dataclass(frozen=True)
class Olmo2(Decoder):
    """Norms of what a block adds instead of before it, and of queries and keys over all heads at once."""

    norms: ClassVar[Mapping[str, Names]] = {
        "attention_output_norm": ("post_attention_layernorm", "post_attention_norm"),
        "down_norm": ("post_feedforward_layernorm", "post_ffw_norm"),
    }
    query_key_norm = QueryKeyNorm.ALL

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        """Reads the fields of transformers' class of this architecture."""
        return cls(folder_config.read_decoder(config, tensor_names, "olmo2"))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        """Reads the fields of the architecture "olmo2"."""
        return cls(gguf_config.read_decoder(file))
